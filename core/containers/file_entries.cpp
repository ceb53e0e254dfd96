#include "core/containers/file_entries.hpp"

#include <algorithm>
#include <utility>

#include "core/base/integers.hpp"

namespace reshard {

void FileEntries::push_back(FileEntry const& entry) {
  if (repeats_on(entry)) return grow(1);
  bool const new_file = size_ == 0 || entry.file != last_file_;
  if (new_file && size_ > 0 && entry.file != as_stored && is_alike(first_of_last_, entry)) {
    begin_stretch(first_of_last_, entry.file);
    last_file_ = entry.file;
    return grow(1);
  }
  auto const at = narrow<std::uint32_t>(entries_.size());
  entries_.push_back(entry);
  if (new_file) {
    last_file_ = entry.file;
    first_of_last_ = at;
  }
  if (!stretches_.empty()) {
    Stretch const& last = stretches_.back();
    if (last.file != as_stored || last.entry + (size_ - last.begin) != at)
      stretches_.push_back({narrow<std::uint32_t>(size_), at, as_stored});
  }
  grow(1);
}

void FileEntries::set(std::size_t at, FileEntry const& entry) {
  if (!stretches_.empty()) {
    std::vector<FileEntry> all;
    all.reserve(size_);
    for (std::size_t i = 0; i < size_; ++i) all.push_back((*this)[i]);
    entries_ = std::move(all);
    stretches_.clear();
    hints_.clear();
    first_of_last_ = narrow<std::uint32_t>(size_);  // the entries of that file may have changed
  }
  entries_[at] = entry;
}

void FileEntries::repeat(std::size_t first, std::size_t count, std::uint32_t file) {
  while (count > 0) {
    Stretch again{};
    std::size_t end = size_;
    if (!stretches_.empty()) {
      std::size_t const number = stretch_of(first);
      again = stretches_[number];
      if (number + 1 < stretches_.size()) end = stretches_[number + 1].begin;
    }
    std::size_t const taken = std::min(count, end - first);
    auto const entry = again.entry + narrow<std::uint32_t>(first - again.begin);
    begin_stretch(entry, file);
    if (std::exchange(last_file_, file) != file) first_of_last_ = entry;
    grow(taken);
    first += taken;
    count -= taken;
  }
}

/// Whether the last stretch repeats a file, and this entry continues it.
bool FileEntries::repeats_on(FileEntry const& entry) const {
  if (stretches_.empty() || stretches_.back().file != entry.file || entry.file == as_stored)
    return false;
  Stretch const& last = stretches_.back();
  return is_alike(last.entry + (size_ - last.begin), entry);
}

void FileEntries::begin_stretch(std::uint32_t entry, std::uint32_t file) {
  if (stretches_.empty()) {
    stretches_.push_back({});
    grow(0);
  }
  stretches_.push_back({narrow<std::uint32_t>(size_), entry, file});
}

void FileEntries::grow(std::size_t count) {
  size_ += count;
  if (stretches_.empty()) return;
  while (hints_.size() * hint_step < size_)
    hints_.push_back(narrow<std::uint32_t>(stretches_.size() - 1));
}

}  // namespace reshard
