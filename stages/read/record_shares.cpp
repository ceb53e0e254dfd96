#include "stages/read/record_shares.hpp"

#include <algorithm>
#include <tuple>

#include "core/base/hash/crc32.hpp"
#include "core/base/hash/mixed_bits.hpp"

namespace reshard {
namespace {

/// Shorter runs cost more time than their bytes.
constexpr std::uint64_t least_run_bytes = 256;

/// A number for each place in a record, as good as random.
std::uint64_t border(std::uint64_t place) { return mixed_bits((place + 1) * 0x9e3779b97f4a7c15U); }

/// The runs of a part in the order of the file, joined where they continue each other.
struct RunsInFile {
  std::uint64_t run_bytes = 0;
  std::vector<ByteDim> dims;     ///< outermost first
  std::uint64_t span_bytes = 0;  ///< from the first byte to after the last
};

RunsInFile file_runs(DigestPart const& part) {
  RunsInFile runs{part.run_bytes, {part.dims.begin(), part.dims.end()}, part.run_bytes};
  std::sort(runs.dims.begin(), runs.dims.end(),
            [](ByteDim const& a, ByteDim const& b) { return a.from_stride > b.from_stride; });
  for (ByteDim const& dim : runs.dims)
    runs.span_bytes += (dim.count - 1) * static_cast<std::uint64_t>(dim.from_stride);
  while (!runs.dims.empty() &&
         static_cast<std::uint64_t>(runs.dims.back().from_stride) == runs.run_bytes) {
    runs.run_bytes *= runs.dims.back().count;
    runs.dims.pop_back();
  }
  return runs;
}

template <class Visit>
void for_each_run(std::span<ByteDim const> dims, std::uint64_t at, Visit const& visit) {
  if (dims.empty()) return visit(at);
  for (std::uint64_t i = 0; i < dims[0].count; ++i)
    for_each_run(dims.subspan(1), at + i * static_cast<std::uint64_t>(dims[0].from_stride), visit);
}

}  // namespace

std::uint64_t covered_by(std::uint64_t begin, std::uint64_t end) {
  return border(end) - border(begin);
}

RecordSums::RecordSums(StoredRecords const& records) {
  records_.reserve(records.size());
  for (StoredRecord const& record : records)
    records_.push_back({record.file, record.offset_bytes, record.offset_bytes + record.size_bytes,
                        static_cast<std::uint32_t>(records_.size())});
  std::sort(records_.begin(), records_.end(), [](Place const& a, Place const& b) {
    return std::tuple(a.file, a.begin) < std::tuple(b.file, b.begin);
  });
}

/// The record that contains all of these bytes; nullptr if there is none.
RecordSums::Place const* RecordSums::find(std::uint32_t file, std::uint64_t begin,
                                          std::uint64_t end) const {
  auto const after = std::upper_bound(records_.begin(), records_.end(), std::tuple(file, begin),
                                      [](auto const& place, Place const& record) {
                                        return place < std::tuple(record.file, record.begin);
                                      });
  if (after == records_.begin()) return nullptr;
  Place const& found = *(after - 1);
  return found.file == file && end <= found.end ? &found : nullptr;
}

void RecordSums::add(std::uint32_t file, std::uint64_t offset_bytes,
                     std::span<std::byte const> bytes, std::vector<RecordShare>& shares) const {
  Place const* const record = find(file, offset_bytes, offset_bytes + bytes.size());
  if (record == nullptr || bytes.empty()) return;
  std::uint64_t const begin = offset_bytes - record->begin;
  shares.push_back({record->number, crc32_share(bytes, record->end - offset_bytes - bytes.size()),
                    covered_by(begin, begin + bytes.size())});
}

void RecordSums::add(DigestPart const& part, std::byte const* staging,
                     std::vector<RecordShare>& shares) const {
  if (records_.empty()) return;
  RunsInFile const runs = file_runs(part);
  Place const* const record =
      find(part.file, part.offset_bytes, part.offset_bytes + runs.span_bytes);
  if (record == nullptr || (!runs.dims.empty() && runs.run_bytes < least_run_bytes)) return;
  Crc32Pieces crc(record->end - record->begin);
  std::uint64_t covered = 0;
  for_each_run(runs.dims, 0, [&](std::uint64_t at) {
    std::uint64_t const begin = part.offset_bytes + at - record->begin;
    crc.add(begin, {staging + part.from + at, runs.run_bytes});
    covered += covered_by(begin, begin + runs.run_bytes);
  });
  shares.push_back({record->number, crc.share(), covered});
}

}  // namespace reshard
