#include "core/io/file_set.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <utility>

#include <sys/resource.h>

#include "core/base/capture.hpp"
#include "core/base/threads/workers.hpp"
#include "core/io/io_engines.hpp"

namespace reshard {
namespace {

/// Whether only the set holds the file. Others get it from the set, under its lock.
bool is_idle(std::shared_ptr<IoFile> const& file) {
  bool const idle = file.use_count() == 1;
  std::atomic_thread_fence(std::memory_order_acquire);
  return idle;
}

}  // namespace

std::size_t FileSet::usual_open_limit() {
  constexpr rlim_t of_others = 32;  // MPI, standard streams, the journal
  constexpr rlim_t least = 2;
  constexpr rlim_t usual = 64;
  constexpr rlim_t most = 2048;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return usual;
  return std::clamp((limit.rlim_cur - std::min(limit.rlim_cur, of_others)) / 4, least, most);
}

FileSet::FileSet(FilePaths paths, Access access, std::size_t open_limit, std::shared_ptr<FileIo> io)
    : paths_(std::move(paths)),
      access_(access),
      open_limit_(open_limit),
      io_(io ? std::move(io) : make_file_io(io_engines().front().name)) {
  RESHARD_EXPECT(open_limit_ >= 1);
}

std::filesystem::path FileSet::path(std::uint32_t file) const {
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
    if (!entry.file) continue;
    if (access_ == Access::read) return place;
    if (!is_idle(entry.file)) continue;
    if (!entry.dirty) return place;
    if (chosen == recent_.end()) chosen = place;
  }
  return chosen;
}

/// Closes files until there is room for one more, or none can be closed. False: one is being
/// opened, and may be closed then.
bool FileSet::make_room() {
  while (entries_.size() >= open_limit_) {
    auto const place = leaving();
    if (place == recent_.end())
      return std::ranges::all_of(entries_,
                                 [](auto const& one) { return one.second.file != nullptr; });
    Entry const entry = std::move(entries_.at(*place));
    entries_.erase(*place);
    recent_.erase(place);
    if (access_ == Access::read) continue;
    if (entry.lost) throw *entry.lost;
    if (entry.dirty) entry.file->sync();
    entry.file->close();
  }
  return true;
}

std::shared_ptr<IoFile const> FileSet::open(std::uint32_t file) {
  std::unique_lock lock(mutex_);
  bool const dirty = access_ == Access::write;
  for (;;) {
    auto const found = entries_.find(file);
    if (found == entries_.end() && make_room()) break;
    if (found == entries_.end() || !found->second.file) {
      changed_.wait(lock);
      continue;
    }
    recent_.splice(recent_.begin(), recent_, found->second.place);
    found->second.dirty = dirty;
    return found->second.file;
  }
  recent_.push_front(file);
  entries_.emplace(file, Entry{nullptr, recent_.begin(), false});
  // A server may take long to answer: others open other files meanwhile.
  lock.unlock();
  std::shared_ptr<IoFile> opened;
  auto const error = capture([&] { opened = open_on_disk(file); });
  lock.lock();
  changed_.notify_all();
  auto const entry = entries_.find(file);
  if (error) {
    recent_.erase(entry->second.place);
    entries_.erase(entry);
    throw *error;
  }
  entry->second.file = opened;
  entry->second.dirty = dirty;
  return opened;
}

void FileSet::adopt(std::uint32_t file, File made) {
  std::unique_lock lock(mutex_);
  RESHARD_EXPECT(access_ == Access::write && !entries_.contains(file));
  if (entries_.size() >= open_limit_) {
    lock.unlock();
    return made.close();
  }
  recent_.push_back(file);
  entries_.emplace(file, Entry{io_->adopt(std::move(made)), std::prev(recent_.end()), true});
}

void FileSet::sync(std::uint32_t file) {
  std::unique_lock lock(mutex_);
  auto found = entries_.end();
  for (;; changed_.wait(lock)) {  // wait for a file that another thread is syncing
    found = entries_.find(file);
    if (found == entries_.end() || !found->second.file) return;
    if (found->second.lost) throw *found->second.lost;
    if (found->second.dirty) break;
    if (found->second.syncs == 0) return;
  }
  Entry& entry = found->second;                            // stays while its file is held
  entry.dirty = entry.file.use_count() > 1 + entry.syncs;  // its holder may write after the sync
  ++entry.syncs;
  std::shared_ptr<IoFile const> written = entry.file;
  lock.unlock();
  auto const error = capture([&] { written->sync(); });
  lock.lock();
  written.reset();
  --entry.syncs;
  if (error) entry.lost = error;
  changed_.notify_all();
  if (error) throw *error;
}

std::vector<std::uint32_t> FileSet::unsynced() const {
  std::lock_guard const lock(mutex_);
  std::vector<std::uint32_t> files;
  for (auto const& [number, entry] : entries_)
    if (entry.dirty) files.push_back(number);
  std::sort(files.begin(), files.end());
  return files;
}

void FileSet::close() {
  std::lock_guard const lock(mutex_);
  std::vector<IoFile*> written;
  for (auto& [number, entry] : entries_) {
    RESHARD_EXPECT(is_idle(entry.file));
    if (access_ == Access::write) written.push_back(entry.file.get());
  }
  std::mutex failing;
  std::optional<Error> failure;
  overlapped(written.size(), [&](std::size_t i) {
    auto const error = capture([&] { written[i]->close(); });
    std::lock_guard const one(failing);
    if (error && !failure) failure = error;
  });
  entries_.clear();
  recent_.clear();
  if (failure) throw *failure;
}

}  // namespace reshard
