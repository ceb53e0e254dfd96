#include "stages/write/target_files.hpp"

#include <algorithm>

#include "core/base/crc32.hpp"

namespace reshard {

RecordChecksums::RecordChecksums(std::span<TargetLayout const> files) {
  for (TargetLayout const& file : files) {
    first_share_.push_back(shares_.size());
    records_.emplace_back();
    if (!file.torch) continue;
    auto const& storages = file.torch->storages;
    for (std::uint32_t i = 0; i < storages.size(); ++i)
      records_.back().push_back({storages[i].payload_offset_bytes, storages[i].payload_offset_bytes + storages[i].size_bytes, i});
    std::sort(records_.back().begin(), records_.back().end(), [](Record const& a, Record const& b) { return a.begin < b.begin; });
    shares_.resize(shares_.size() + storages.size(), 0);
  }
  first_share_.push_back(shares_.size());
}

void RecordChecksums::add(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes) {
  auto const& records = records_[file];
  std::uint64_t const end = offset_bytes + bytes.size();
  auto at = std::upper_bound(records.begin(), records.end(), offset_bytes, [](std::uint64_t o, Record const& r) { return o < r.end; });
  for (; at != records.end() && at->begin < end; ++at) {
    std::uint64_t const first = std::max(at->begin, offset_bytes);
    std::uint64_t const last = std::min(at->end, end);
    if (first >= last) continue;
    shares_[first_share_[file] + at->number] ^= crc32_share(bytes.subspan(first - offset_bytes, last - first), at->end - last);
  }
}

std::vector<std::uint32_t> RecordChecksums::of_file(std::uint32_t file) const {
  std::vector<std::uint32_t> result(shares_.begin() + static_cast<std::ptrdiff_t>(first_share_[file]),
                                    shares_.begin() + static_cast<std::ptrdiff_t>(first_share_[file + 1]));
  for (Record const& record : records_[file]) result[record.number] ^= crc32_of_zeros(record.end - record.begin);
  return result;
}

void create_target_file(TargetLayout const& layout) {
  std::error_code error;
  std::filesystem::create_directories(layout.path.parent_path(), error);
  if (error) fail_errno(layout.path.parent_path(), "create", error.value());
  File const file = File::create(layout.path);
  file.resize(layout.size_bytes);
  if (!layout.header.empty()) file.write_at(0, std::as_bytes(std::span(layout.header)));
}

void finish_target_file(TargetLayout const& layout, std::span<std::uint32_t const> crc32) {
  File const file = File::open_for_writing(layout.path);
  if (layout.torch) finish_torch_file(file, *layout.torch, crc32);
  file.sync();
}

}  // namespace reshard
