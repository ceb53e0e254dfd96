#include "core/base/file_set.hpp"

#include <utility>

namespace reshard {

FileSet::FileSet(std::vector<std::filesystem::path> paths, Access access, std::size_t open_limit)
    : paths_(std::move(paths)), access_(access), open_limit_(open_limit) {
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

std::shared_ptr<File const> FileSet::open_on_disk(std::uint32_t file) const {
  if (access_ == Access::write) return std::make_shared<File const>(File::open_for_writing(path(file)));
  auto opened = std::make_shared<File const>(File::open_for_reading(path(file)));
  if (look_) look_(file, *opened);
  opened->expect_sequential_reads();
  return opened;
}

void FileSet::drop_oldest() {
  entries_.erase(recent_.back());
  recent_.pop_back();
}

std::shared_ptr<File const> FileSet::open(std::uint32_t file) {
  // Opening stays under the lock: two threads that want the same file must not open it twice, and openings are rare.
  std::lock_guard const lock(mutex_);
  if (auto const found = entries_.find(file); found != entries_.end()) {
    recent_.splice(recent_.begin(), recent_, found->second.place);
    return found->second.file;
  }
  std::shared_ptr<File const> opened = open_on_disk(file);
  if (entries_.size() >= open_limit_) drop_oldest();
  recent_.push_front(file);
  entries_.emplace(file, Entry{opened, recent_.begin()});
  return opened;
}

}  // namespace reshard
