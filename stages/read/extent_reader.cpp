#include "stages/read/extent_reader.hpp"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace reshard {
namespace {

// Plain cached requests of many MiB: of the alternatives to POSIX_FADV_SEQUENTIAL
// (POSIX_FADV_WILLNEED for the next request, several threads, RWF_DONTCACHE) only the last was
// faster, by a tenth, and it makes ranks of a host that share a source file read it again.
constexpr BatchRules one_at_a_time{.most_bytes = std::uint64_t{16} << 20, .tail = TailPage::joined};
/// With several requests at a time: a round has some for each thread.
constexpr BatchRules several{.most_bytes = std::uint64_t{4} << 20, .tail = TailPage::joined};
/// The bytes that one thread merges at a time.
constexpr std::uint64_t cut_bytes = std::uint64_t{1} << 20;

}  // namespace

ExtentReader::ExtentReader(FileSet& files, std::span<SourceView const> views,
                           StoredBytesObserver observer, std::size_t threads)
    : files_(files),
      views_(views),
      rules_(threads > 1 ? several : one_at_a_time),
      lanes_(threads),
      carried_view_(views.size()),
      tiles_(files, tile_stats_),
      workers_(threads) {
  StoredBytesObserver alone;
  if (observer)
    alone = [this, observer = std::move(observer)](std::uint32_t file, std::uint64_t offset_bytes,
                                                   std::span<std::byte const> bytes) {
      std::lock_guard const lock(observing_);
      observer(file, offset_bytes, bytes);
    };
  auto const open = [&](Lane& lane) {
    lane.views = std::make_unique<ViewReader>(files, views, lane.stats, tiles_, scales_, alone);
  };
  for (Lane& lane : lanes_) open(lane);
  for (Lane& lane : carried_) open(lane);
}

ReadStats ExtentReader::stats() const {
  ReadStats sum = tile_stats_;
  auto const add = [&sum](Lane const& lane) {
    sum.bytes += lane.stats.bytes;
    sum.calls += lane.stats.calls;
  };
  std::ranges::for_each(lanes_, add);
  std::ranges::for_each(carried_, add);
  return sum;
}

void ExtentReader::read(std::span<Extent const> extents, std::byte* staging) {
  std::vector<Extent> const sorted = by_place(extents);
  auto const stored = std::ranges::partition_point(
      sorted, [this](Extent const& extent) { return extent.file < files_.size(); });
  std::vector<ExtentBatch> const batches = batches_of({sorted.begin(), stored}, rules_);
  std::vector<Group> const groups = groups_of({stored, sorted.end()});
  // Scales come with the codes of their weights.
  auto const of_scales = [this](Group const& group) {
    return views_[view_of(group)].kind == ViewKind::scales;
  };
  workers_.run(groups.size() + batches.size(), [&](std::size_t item, std::size_t worker) {
    if (item >= groups.size())
      read_batch(batches[item - groups.size()], staging, lanes_[worker]);
    else if (!of_scales(groups[item]))  // first, because they take longer
      compute(groups[item], staging, lane_of(groups, item, worker));
  });
  if (std::ranges::any_of(groups, of_scales))
    workers_.run(groups.size(), [&](std::size_t item, std::size_t worker) {
      if (of_scales(groups[item])) compute(groups[item], staging, lane_of(groups, item, worker));
    });
  if (groups.empty() || is_cut(groups.back())) return;
  if (view_of(groups.back()) != carried_view_) std::swap(carried_[0], carried_[1]);
  carried_view_ = view_of(groups.back());
}

/// Whether threads share an extent of a view: elements of which none needs another.
bool ExtentReader::is_cut(SourceView const& view) {
  bool const averaged = !view.averaged.empty() && !view.gathered &&
                        view.kind != ViewKind::dequantise && view.kind != ViewKind::rows;
  return view.kind == ViewKind::merge || averaged;
}

/// Extents that threads share first: they take longest.
std::vector<ExtentReader::Group> ExtentReader::groups_of(std::span<Extent const> computed) const {
  std::vector<Group> groups;
  std::vector<Group> cut;
  for (Extent const& extent : computed) {
    RESHARD_EXPECT(extent.file - files_.size() < views_.size());
    if (is_cut(views_[extent.file - files_.size()])) {
      for (std::uint64_t done = 0; done < extent.bytes; done += cut_bytes) {
        Extent part = extent;
        part.offset_bytes += done;
        part.at += done;
        part.bytes = std::min(cut_bytes, extent.bytes - done);
        cut.push_back({part});
      }
      continue;
    }
    if (groups.empty() || groups.back().front().file != extent.file) groups.emplace_back();
    groups.back().push_back(extent);
  }
  groups.insert(groups.begin(), std::make_move_iterator(cut.begin()),
                std::make_move_iterator(cut.end()));
  return groups;
}

bool ExtentReader::is_cut(Group const& group) const { return is_cut(views_[view_of(group)]); }

/// The lane of the previous round's last view continues it, and that of this round's last view is
/// kept for the next.
ExtentReader::Lane& ExtentReader::lane_of(std::span<Group const> groups, std::size_t group,
                                          std::size_t worker) {
  if (is_cut(groups[group])) return lanes_[worker];
  if (view_of(groups[group]) == carried_view_) return carried_[0];
  Lane& lane = group + 1 == groups.size() ? carried_[1] : lanes_[worker];
  lane.views->forget();
  return lane;
}

void ExtentReader::read_batch(ExtentBatch const& batch, std::byte* staging, Lane& lane) {
  std::vector<iovec> parts;
  parts.reserve(batch.parts.size());
  for (auto const& part : batch.parts) parts.push_back({staging + part.at, part.bytes});
  files_.open(batch.file)->read_parts_at(batch.offset_bytes, parts);
  lane.stats.bytes += batch.bytes;
  lane.stats.calls += 1;
}

void ExtentReader::compute(Group const& group, std::byte* staging, Lane& lane) {
  for (ExtentBatch const& batch : batches_of(group, one_at_a_time)) {
    std::uint64_t offset = batch.offset_bytes;
    for (auto const& part : batch.parts) {
      lane.views->read(batch.file - files_.size(), offset, {staging + part.at, part.bytes});
      offset += part.bytes;
    }
  }
}

}  // namespace reshard
