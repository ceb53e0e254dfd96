#include "core/plan/equal/unread.hpp"

#include <algorithm>
#include <tuple>

#include "core/base/hash/crc32.hpp"
#include "core/plan/cells/cell_cuts.hpp"
#include "core/plan/clones.hpp"

namespace reshard {
namespace {

/// Whether straight_stretches() returns every byte of the region, in complete blocks.
bool is_of_blocks(Plan const& plan, Region const& region) {
  std::uint64_t const block = plan.clones.block_bytes;
  std::uint64_t sizes = region.src_offset_bytes | region.dst_offset_bytes | region.run_bytes;
  for (ByteDim const& dim : plan.dims_of(region))
    sizes |=
        static_cast<std::uint64_t>(dim.from_stride) | static_cast<std::uint64_t>(dim.to_stride);
  return region.src_file < plan.clones.source_files && sizes % block == 0 &&
         (region.dim_count == 0 || region.run_bytes >= least_apart_bytes);
}

bool begins_before(CloneExtent const& a, FileSpan const& b) {
  return std::tuple(a.file, a.offset_bytes + a.bytes) <= std::tuple(b.file, b.begin);
}

/// Removes tensors from a choice until the rest can be cloned unread.
class Chooser {
 public:
  Chooser(Plan const& plan, UnreadTerms const& terms)
      : plan_(plan), terms_(terms), chosen_(terms.recorded), known_(terms.known) {
    chosen_.resize(plan.tensor_bytes.size(), false);
    std::sort(known_.begin(), known_.end(), [](SummedBytes const& a, SummedBytes const& b) {
      return std::tie(a.file, a.offset_bytes) < std::tie(b.file, b.offset_bytes);
    });
    for (StateCheck const& check : plan.checks) chosen_[index(digest_of(check.state))] = false;
  }

  UnreadBytes run(std::vector<bool>& chosen) {
    for (Cell const& cell : plan_.cells)
      for (Region const& region : plan_.regions_of(cell))
        if (is_chosen(cell) && !is_of_blocks(plan_, region)) refuse(cell);
    do {
      changed_ = false;
      stretches_ = straight_stretches(regions(), plan_.dims, plan_.clones);
      refuse_short_ones();
      refuse_unsummed();
    } while (changed_);
    chosen = chosen_;
    UnreadBytes result;
    for (CloneExtent const& one : stretches_)
      result.spans.push_back({one.file, one.offset_bytes, one.offset_bytes + one.bytes});
    result.spans = united(std::move(result.spans), 0);
    for (FileSpan const& wanted : terms_.wanted) result.crc32.push_back(sum_of(wanted));
    return result;
  }

 private:
  bool is_chosen(Cell const& cell) const {
    DigestId const digest = plan_.digest_of(cell);
    return digest != DigestId::none && chosen_[index(digest)];
  }
  void refuse(Cell const& cell) {
    chosen_[index(plan_.digest_of(cell))] = false;
    changed_ = true;
  }
  std::vector<Region> regions() const {
    std::vector<Region> all;
    for (Cell const& cell : plan_.cells) {
      if (!is_chosen(cell)) continue;
      std::vector<Region> const own = plan_.regions_of(cell);
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

  /// Refuses every tensor with bytes in one of these places of the target.
  void refuse_in(std::vector<FileSpan> const& places) {
    if (places.empty()) return;
    for (Cell const& cell : plan_.cells) {
      if (!is_chosen(cell)) continue;
      for (Region const& region : plan_.regions_of(cell)) {
        auto const at = std::ranges::partition_point(places, [&](FileSpan const& place) {
          return std::tuple(place.file, place.end) <=
                 std::tuple(region.to, region.dst_offset_bytes);
        });
        if (at != places.end() && at->file == region.to && at->begin < reach_of(region)) {
          refuse(cell);
          break;
        }
      }
    }
  }
  std::uint64_t reach_of(Region const& region) const {
    std::uint64_t end = region.dst_offset_bytes + region.run_bytes;
    for (ByteDim const& dim : plan_.dims_of(region))
      end += (dim.count - 1) * static_cast<std::uint64_t>(dim.to_stride);
    return end;
  }

  void refuse_short_ones() {
    std::vector<FileSpan> places;
    for (CloneExtent const& one : stretches_)
      if (one.bytes < least_clone_bytes)
        places.push_back({one.file, one.offset_bytes, one.offset_bytes + one.bytes});
    refuse_in(places);
  }

  /// Removes tensors with bytes in a range whose wanted CRC-32 does not follow from known sums.
  void refuse_unsummed() {
    std::vector<FileSpan> places;
    for (FileSpan const& wanted : terms_.wanted) {
      auto const first = first_in(wanted);
      if (first != stretches_.end() && first->file == wanted.file &&
          first->offset_bytes < wanted.end && !sum_of(wanted))
        places.push_back(wanted);
    }
    refuse_in(united(std::move(places), 0));
  }

  std::vector<CloneExtent>::const_iterator first_in(FileSpan const& span) const {
    return std::ranges::partition_point(
        stretches_, [&](CloneExtent const& one) { return begins_before(one, span); });
  }

  std::optional<std::uint32_t> sum_of(FileSpan const& wanted) const {
    std::uint32_t share = 0;
    std::uint64_t at = wanted.begin;
    for (auto one = first_in(wanted); at < wanted.end; ++one) {
      if (one == stretches_.end() || one->file != wanted.file || one->offset_bytes != at ||
          one->offset_bytes + one->bytes > wanted.end)
        return std::nullopt;
      auto const sum = known_sum(*one);
      if (!sum) return std::nullopt;
      at += one->bytes;
      share ^= crc32_share_of(*sum, one->bytes, wanted.end - at);
    }
    if (wanted.begin == wanted.end) return std::nullopt;
    return crc32_of_zeros(wanted.end - wanted.begin) ^ share;
  }

  std::optional<std::uint32_t> known_sum(CloneExtent const& one) const {
    auto const found = std::ranges::partition_point(known_, [&](SummedBytes const& sum) {
      return std::tie(sum.file, sum.offset_bytes) < std::tie(one.from_file, one.from_bytes);
    });
    if (found == known_.end() || found->file != one.from_file ||
        found->offset_bytes != one.from_bytes || found->bytes != one.bytes)
      return std::nullopt;
    return found->crc32;
  }

  Plan const& plan_;
  UnreadTerms const& terms_;
  std::vector<bool> chosen_;
  std::vector<SummedBytes> known_;  ///< by place
  std::vector<CloneExtent> stretches_;
  bool changed_ = false;
};

}  // namespace

UnreadBytes leave_unread(Plan& plan, UnreadTerms const& terms) {
  UnreadBytes result = Chooser(plan, terms).run(plan.unread);
  if (result.spans.empty()) {
    plan.unread.clear();
    return result;
  }
  for (std::size_t c = 0; c < plan.cells.size(); ++c)
    if (is_unread(plan, plan.cells[c])) plan.cells.set_staging(c, 0);
  return result;
}

bool is_unread(Plan const& plan, Cell const& cell) {
  DigestId const digest = plan.unread.empty() ? DigestId::none : plan.digest_of(cell);
  return digest != DigestId::none && plan.unread[index(digest)];
}

}  // namespace reshard
