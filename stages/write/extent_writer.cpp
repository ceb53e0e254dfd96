#include "stages/write/extent_writer.hpp"

#include <utility>
#include <vector>

namespace reshard {
namespace {

constexpr BatchRules rules{.most_bytes = std::uint64_t{8} << 20, .tail = TailPage::apart};

// Smaller writes stay in the page cache: sending each to the device at once would cost more than it
// saves.
constexpr std::uint64_t least_uncached_bytes = std::uint64_t{64} << 10;
constexpr std::uint64_t window_limit_bytes = std::uint64_t{32} << 20;

}  // namespace

std::string_view name_of(WriteMode mode) {
  switch (mode) {
    case WriteMode::automatic: return "automatic";
    case WriteMode::dontcache: return "dontcache";
    case WriteMode::window: return "window";
    case WriteMode::buffered: return "buffered";
  }
  broken("WriteMode", __FILE__, __LINE__);
}

void ExtentWriter::write(std::span<Extent const> extents, std::byte* staging) {
  std::vector<Extent> sorted = by_place(extents);
  for (Extent const& extent : sorted) {
    if (observer_) observer_(extent.file, extent.offset_bytes, {staging + extent.at, extent.bytes});
    stats_.bytes += extent.bytes;
  }
  if (edges_ != nullptr) sorted = edges_->keep(sorted, staging);
  for (ExtentBatch const& batch : batches_of(sorted, rules)) write_batch(batch, staging);
}

void ExtentWriter::write_batch(ExtentBatch const& batch, std::byte* staging) {
  std::vector<iovec> parts;
  parts.reserve(batch.parts.size());
  for (auto const& part : batch.parts) parts.push_back({staging + part.at, part.bytes});
  std::shared_ptr<File const> const file = files_.open(batch.file);
  if (!write_uncached(batch, *file, parts)) {
    RESHARD_EXPECT(file->write_parts_at(batch.offset_bytes, parts, File::Cache::keep));
    if (mode_ == WriteMode::window && batch.bytes >= least_uncached_bytes)
      slide_window({file, batch.offset_bytes, batch.bytes});
  }
  stats_.calls += 1;
}

void ExtentWriter::close() {
  window_.clear();
  window_bytes_ = 0;
}

bool ExtentWriter::write_uncached(ExtentBatch const& batch, File const& file,
                                  std::span<iovec const> parts) {
  if (batch.bytes < least_uncached_bytes ||
      (mode_ != WriteMode::automatic && mode_ != WriteMode::dontcache))
    return false;
  bool const written = file.write_parts_at(batch.offset_bytes, parts, File::Cache::drop);
  mode_ = written ? WriteMode::dontcache : WriteMode::window;
  return written;
}

void ExtentWriter::slide_window(Written written) {
  if (!written.file->begin_write_back(written.offset_bytes, written.bytes)) {
    mode_ = WriteMode::buffered;
    window_.clear();
    return;
  }
  window_bytes_ += written.bytes;
  window_.push_back(std::move(written));
  while (window_bytes_ > window_limit_bytes) {
    Written const& oldest = window_.front();
    oldest.file->finish_write_back(oldest.offset_bytes, oldest.bytes);
    window_bytes_ -= oldest.bytes;
    window_.pop_front();
  }
}

}  // namespace reshard
