#include "stages/read/extent_reader.hpp"

#include <vector>

namespace reshard {
namespace {

// Plain cached requests of many MiB: of what was tried (announcing the next request with
// POSIX_FADV_WILLNEED, several threads, RWF_DONTCACHE) only the last was faster than that with
// POSIX_FADV_SEQUENTIAL, by a tenth, and it makes ranks of a host that share a source file read it
// again.
constexpr BatchRules one_at_a_time{.most_bytes = std::uint64_t{16} << 20, .tail = TailPage::joined};
/// Of several requests at a time: a round has some for each thread.
constexpr BatchRules several{.most_bytes = std::uint64_t{4} << 20, .tail = TailPage::joined};

}  // namespace

ExtentReader::ExtentReader(FileSet& files, std::span<SourceView const> views,
                           StoredBytesObserver observer, std::size_t threads)
    : files_(files),
      rules_(threads > 1 ? several : one_at_a_time),
      lanes_(threads),
      workers_(threads) {
  StoredBytesObserver alone;
  if (observer)
    alone = [this, observer = std::move(observer)](std::uint32_t file, std::uint64_t offset_bytes,
                                                   std::span<std::byte const> bytes) {
      std::lock_guard const lock(observing_);
      observer(file, offset_bytes, bytes);
    };
  for (Lane& lane : lanes_)
    lane.views = std::make_unique<ViewReader>(files, views, lane.stats, alone);
}

ReadStats ExtentReader::stats() const {
  ReadStats sum;
  for (Lane const& lane : lanes_) {
    sum.bytes += lane.stats.bytes;
    sum.calls += lane.stats.calls;
  }
  return sum;
}

void ExtentReader::read(std::span<Extent const> extents, std::byte* staging) {
  std::vector<ExtentBatch> const batches = batches_of(by_place(extents), rules_);
  workers_.run(batches.size(), [&](std::size_t batch, std::size_t worker) {
    read_batch(batches[batch], staging, lanes_[worker]);
  });
}

void ExtentReader::read_batch(ExtentBatch const& batch, std::byte* staging, Lane& lane) {
  if (batch.file >= files_.size()) return compute_batch(batch, staging, lane);
  std::vector<iovec> parts;
  parts.reserve(batch.parts.size());
  for (auto const& part : batch.parts) parts.push_back({staging + part.at, part.bytes});
  files_.open(batch.file)->read_parts_at(batch.offset_bytes, parts);
  lane.stats.bytes += batch.bytes;
  lane.stats.calls += 1;
}

void ExtentReader::compute_batch(ExtentBatch const& batch, std::byte* staging, Lane& lane) {
  std::uint64_t offset = batch.offset_bytes;
  for (auto const& part : batch.parts) {
    lane.views->read(batch.file - files_.size(), offset, {staging + part.at, part.bytes});
    offset += part.bytes;
  }
}

}  // namespace reshard
