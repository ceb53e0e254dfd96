#include "core/io/file_set.hpp"

#include <atomic>
#include <optional>
#include <utility>

#include "core/io/io_engines.hpp"

namespace reshard {
namespace {

/// Whether the set alone holds it. Others get it from the set only, under its lock.
bool is_idle(std::shared_ptr<IoFile> const& file) {
  bool const idle = file.use_count() == 1;
  std::atomic_thread_fence(std::memory_order_acquire);
  return idle;
}

}  // namespace

FileSet::FileSet(std::vector<std::filesystem::path> paths, Access access, std::size_t open_limit,
                 std::shared_ptr<FileIo> io)
    : paths_(std::move(paths)),
      access_(access),
      open_limit_(open_limit),
      io_(io ? std::move(io) : make_file_io(io_engines().front().name)) {
  RESHARD_EXPECT(open_limit_ >= 1);
}

std::filesystem::path const& FileSet::path(std::uint32_t file) const {
  RESHARD_EXPECT(file < paths_.size());
  return paths_[file];
}

std::size_t FileSet::open_count() const {
  std::lock_guard const lock(mutex_);
  return entries_.size();
}

std::shared_ptr<IoFile> FileSet::open_on_disk(std::uint32_t file) const {
  if (access_ == Access::write) return io_->open_for_writing(path(file));
  std::shared_ptr<IoFile> opened = io_->open_for_reading(path(file));
  if (look_) look_(file, opened->file());
  return opened;
}

/// The file that is closed next: one without anything to sync, if there is one. None (the end): all
/// written files are held.
std::list<std::uint32_t>::iterator FileSet::leaving() {
  auto chosen = recent_.end();
  for (auto place = recent_.end(); place != recent_.begin();) {
    Entry const& entry = entries_.at(*--place);
    if (access_ == Access::read) return place;
    if (!is_idle(entry.file)) continue;
    if (!entry.dirty) return place;
    if (chosen == recent_.end()) chosen = place;
  }
  return chosen;
}

void FileSet::make_room() {
  if (entries_.size() < open_limit_) return;
  auto const place = leaving();
  if (place == recent_.end()) return;
  Entry const entry = std::move(entries_.at(*place));
  entries_.erase(*place);
  recent_.erase(place);
  if (access_ == Access::read) return;
  if (entry.dirty) entry.file->sync();
  entry.file->close();
}

std::shared_ptr<IoFile const> FileSet::open(std::uint32_t file) {
  // Opening stays under the lock: two threads that need the same file must not open it twice, and
  // openings are rare.
  std::lock_guard const lock(mutex_);
  bool const dirty = access_ == Access::write;
  if (auto const found = entries_.find(file); found != entries_.end()) {
    recent_.splice(recent_.begin(), recent_, found->second.place);
    found->second.dirty = dirty;
    return found->second.file;
  }
  make_room();
  std::shared_ptr<IoFile> opened = open_on_disk(file);
  recent_.push_front(file);
  entries_.emplace(file, Entry{opened, recent_.begin(), dirty});
  return opened;
}

void FileSet::sync(std::uint32_t file) {
  std::shared_ptr<IoFile const> written;
  {
    std::lock_guard const lock(mutex_);
    auto const found = entries_.find(file);
    if (found == entries_.end() || !found->second.dirty) return;
    found->second.dirty = !is_idle(found->second.file);  // its holder may write after the sync
    written = found->second.file;
  }
  written->sync();
}

void FileSet::close() {
  std::lock_guard const lock(mutex_);
  std::optional<Error> failure;
  for (auto& [number, entry] : entries_) {
    RESHARD_EXPECT(is_idle(entry.file));
    if (access_ == Access::read) continue;
    try {
      entry.file->close();
    } catch (Error const& error) {
      if (!failure) failure = error;
    }
  }
  entries_.clear();
  recent_.clear();
  if (failure) throw *failure;
}

}  // namespace reshard
