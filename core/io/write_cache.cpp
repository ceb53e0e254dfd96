#include "core/io/write_cache.hpp"

#include "core/io/parts_cursor.hpp"

namespace reshard {
namespace {

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

WriteMode WriteCache::mode() const {
  std::lock_guard const lock(mutex_);
  return mode_;
}

void WriteCache::write(File const& file, std::uint64_t offset_bytes, std::span<iovec const> parts) {
  std::uint64_t const bytes = bytes_of(parts);
  bool const large = bytes >= least_uncached_bytes;
  if (large && write_uncached(file, offset_bytes, parts)) return;
  RESHARD_EXPECT(file.write_parts_at(offset_bytes, parts, File::Cache::keep));
  if (large) slide_window({&file, offset_bytes, bytes});
}

bool WriteCache::write_uncached(File const& file, std::uint64_t offset_bytes,
                                std::span<iovec const> parts) {
  WriteMode const now = mode();
  if (now != WriteMode::automatic && now != WriteMode::dontcache) return false;
  bool const written = file.write_parts_at(offset_bytes, parts, File::Cache::drop);
  std::lock_guard const lock(mutex_);
  mode_ = written ? WriteMode::dontcache : WriteMode::window;
  return written;
}

void WriteCache::slide_window(Written const& written) {
  std::lock_guard const lock(mutex_);
  if (mode_ != WriteMode::window) return;
  if (!written.file->begin_write_back(written.offset_bytes, written.bytes)) {
    mode_ = WriteMode::buffered;
    window_.clear();
    window_bytes_ = 0;
    return;
  }
  window_bytes_ += written.bytes;
  window_.push_back(written);
  while (window_bytes_ > window_limit_bytes) {
    Written const oldest = window_.front();
    oldest.file->finish_write_back(oldest.offset_bytes, oldest.bytes);
    window_bytes_ -= oldest.bytes;
    window_.pop_front();
  }
}

void WriteCache::forget(File const& file) {
  std::lock_guard const lock(mutex_);
  for (Written const& one : window_)
    if (one.file == &file) window_bytes_ -= one.bytes;
  std::erase_if(window_, [&](Written const& one) { return one.file == &file; });
}

}  // namespace reshard
