#include "stages/redistribute/device_round.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "core/base/error.hpp"
#include "core/device/copy_program.hpp"
#include "core/device/digest_program.hpp"
#include "core/device/value_program.hpp"

namespace reshard {
namespace {

// Programs begin on cache lines of the device's memory.
constexpr std::uint64_t program_alignment = 256;

/// The range from the first to the last byte that a copy reads.
ByteRange source_of(StridedCopy const& copy) {
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (ByteDim const& dim : copy.dims) {
    std::int64_t const reach = static_cast<std::int64_t>(dim.count - 1) * dim.from_stride;
    (reach < 0 ? first : last) += reach;
  }
  return {copy.from + static_cast<std::uint64_t>(first),
          copy.from + static_cast<std::uint64_t>(last) + copy.run_bytes};
}

/// The staging ranges of extents or of messages.
template <class Part>
std::vector<ByteRange> ranges_of(std::vector<Part> const& parts) {
  std::vector<ByteRange> ranges;
  for (Part const& part : parts) ranges.push_back(range_at(part.at, part.bytes));
  return ranges;
}

bool touches(std::vector<ByteRange> const& ranges, ByteRange const& wanted) {
  auto const after =
      std::upper_bound(ranges.begin(), ranges.end(), wanted.end - 1,
                       [](std::uint64_t at, ByteRange const& range) { return at < range.begin; });
  return after != ranges.begin() && std::prev(after)->end > wanted.begin;
}

std::uint64_t sums_bytes(DeviceRound const& round) { return 8 * round.computed_digests.size(); }

class Maker {
 public:
  Maker(RoundWork work, std::span<SourceView const> views, MessagePlace messages)
      : views_(views), messages_(messages) {
    round_.work = std::move(work);
  }

  DeviceRound make(std::uint32_t first_view_file) {
    first_raw_place_ = round_.work.staging_bytes;
    choose_digests(first_view_file);
    round_.computed = stage_raw_views(round_.work, views_, first_view_file);
    make_programs();
    choose_uploads();
    choose_downloads();
    place(round_.before, round_.before_at);
    place(round_.after, round_.after_at);
    if (round_.verdict_at) round_.uploads.push_back(range_at(*round_.verdict_at, verdict_bytes));
    if (!round_.computed_digests.empty())
      round_.uploads.push_back(range_at(round_.sums_at, sums_bytes(round_)));
    join_uploads();
    return std::move(round_);
  }

 private:
  std::uint64_t take(std::uint64_t bytes) {
    std::uint64_t const at =
        (round_.work.staging_bytes + program_alignment - 1) / program_alignment * program_alignment;
    round_.work.staging_bytes = at + bytes;
    return at;
  }

  /// Values of views are only on the device; all other bytes were read by the host.
  void choose_digests(std::uint32_t first_view_file) {
    std::vector<ByteRange> views;
    for (Extent const& read : round_.work.reads)
      if (read.file >= first_view_file && !only_on_host(views_[read.file - first_view_file]))
        views.push_back(range_at(read.at, read.bytes));
    if (views.empty()) return;
    views = united(std::move(views));
    std::vector<DigestPart> all = std::move(round_.work.digests);
    round_.work.digests.clear();
    for (DigestPart& part : all) {
      bool const computed = touches(views, range_at(part.from, part.run_bytes));
      if (computed && part.digest == DigestId::none) continue;
      (computed ? round_.computed_digests : round_.work.digests).push_back(std::move(part));
    }
  }

  void add_digesting() {
    if (round_.computed_digests.empty()) return;
    round_.sums_at = take(sums_bytes(round_));
    std::vector<DigestRequest> requests;
    for (DigestPart const& part : round_.computed_digests)
      requests.push_back({part.from, part.at, part.run_bytes, part.dims, part.tensor_bytes,
                          round_.sums_at + 8 * requests.size()});
    add_digests(round_.before, requests);
  }

  void make_programs() {
    add_computing();
    add_digesting();
    std::vector<CopyRequest> copies;
    add(copies, round_.work.copies);
    for (Message const& message : round_.work.sends) add(copies, message.copies);
    add_copies(round_.before, copies);
    round_.bytes_copied += bytes_of(copies);
    copies.clear();
    for (Message const& message : round_.work.receives) add(copies, message.copies);
    add_copies(round_.after, copies);
    round_.bytes_copied += bytes_of(copies);
  }

  static void add(std::vector<CopyRequest>& requests, std::vector<StridedCopy> const& copies) {
    for (StridedCopy const& copy : copies)
      requests.push_back({copy.from, copy.to, copy.run_bytes, copy.dims});
  }

  void add_computing() {
    std::vector<ConvertRequest> converts;
    std::vector<DequantiseRequest> dequantises;
    std::map<std::uint32_t, quant::Dequantiser> decoders;
    for (ViewPart const& part : round_.computed) {
      SourceView const& view = views_[part.view];
      if (view.kind == ViewKind::dequantise) {
        auto decoder = decoders.find(part.view);
        if (decoder == decoders.end())
          decoder = decoders.emplace(part.view, dequantiser_of(view)).first;
        dequantises.push_back({&decoder->second, part.rows, part.stored, part.scales, part.seconds,
                               part.zero_points, part.to});
      } else {
        double const constant = view.kind == ViewKind::add ? view.constant : 0;
        converts.push_back(
            {part.stored, part.to, view.stored.dtype, view.dtype, constant,
             static_cast<std::uint64_t>(part.count),
             view.kind == ViewKind::round ? Rounding::nearest_even : Rounding::exact});
      }
    }
    if (!converts.empty()) {
      round_.verdict_at = take(verdict_bytes);
      add_converts(round_.before, converts, *round_.verdict_at);
    }
    if (!dequantises.empty()) add_dequantises(round_.before, dequantises);
  }

  /// The reads whose bytes the device needs.
  void choose_uploads() {
    std::vector<ByteRange> wanted;
    for (StridedCopy const& copy : round_.work.copies) wanted.push_back(source_of(copy));
    for (Message const& message : round_.work.sends) {
      if (messages_ == MessagePlace::device) wanted.push_back(range_at(message.at, message.bytes));
      for (StridedCopy const& copy : message.copies) wanted.push_back(source_of(copy));
    }
    wanted = united(std::move(wanted));
    for (Extent const& read : round_.work.reads)
      if (read.bytes > 0 &&
          (read.at >= first_raw_place_ || touches(wanted, range_at(read.at, read.bytes))))
        round_.uploads.push_back(range_at(read.at, read.bytes));
  }

  /// The bytes that the host needs and did not read itself.
  void choose_downloads() {
    auto const read = united(ranges_of(round_.work.reads));
    round_.downloads = without(united(ranges_of(round_.work.writes)), read);
    if (messages_ == MessagePlace::device) return;
    round_.packed = without(united(ranges_of(round_.work.sends)), read);
    round_.arrived = united(ranges_of(round_.work.receives));
  }

  void place(Program const& program, std::uint64_t& at) {
    if (program.bytes.empty()) return;
    at = take(program.bytes.size());
    round_.uploads.push_back(range_at(at, program.bytes.size()));
  }

  /// Joins uploads across the gaps of alignment.
  void join_uploads() { round_.uploads = united(std::move(round_.uploads), staging_alignment - 1); }

  std::span<SourceView const> views_;
  MessagePlace messages_;
  DeviceRound round_;
  std::uint64_t first_raw_place_ = 0;  ///< stored bytes of views lie from here on
};

}  // namespace

DeviceRound make_device_round(RoundWork work, std::span<SourceView const> views,
                              std::uint32_t first_view_file, MessagePlace messages) {
  return Maker(std::move(work), views, messages).make(first_view_file);
}

void place_programs(DeviceRound const& round, std::byte* staging) {
  if (!round.before.bytes.empty())
    std::memcpy(staging + round.before_at, round.before.bytes.data(), round.before.bytes.size());
  if (!round.after.bytes.empty())
    std::memcpy(staging + round.after_at, round.after.bytes.data(), round.after.bytes.size());
  if (round.verdict_at) clear_verdict(staging + *round.verdict_at);
  if (!round.computed_digests.empty()) std::memset(staging + round.sums_at, 0, sums_bytes(round));
}

std::vector<DigestShare> computed_digests(DeviceRound const& round, std::byte const* staging) {
  std::vector<DigestShare> shares;
  for (std::size_t i = 0; i < round.computed_digests.size(); ++i) {
    std::uint64_t sum = 0;
    std::memcpy(&sum, staging + round.sums_at + 8 * i, sizeof sum);
    shares.push_back({round.computed_digests[i].digest, sum, bytes_of(round.computed_digests[i])});
  }
  return shares;
}

}  // namespace reshard
