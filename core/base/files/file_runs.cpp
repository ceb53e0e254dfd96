#include "core/base/files/file_runs.hpp"

#include <algorithm>
#include <utility>

#include "core/base/tables/integers.hpp"

namespace reshard {

void FileRuns::add_entry(std::uint32_t file, bool new_file) {
  auto const entry = narrow<std::uint32_t>(entries_++);
  if (new_file) {
    last_file_ = file;
    first_of_last_ = entry;
  }
  if (!is_plain()) {
    Stretch const& last = stretches_.back();
    if (last.file != as_stored || next_repeated() != entry)
      stretches_.push_back({narrow<std::uint32_t>(size_), entry, as_stored});
  }
  grow(1);
}

void FileRuns::repeat(std::size_t first, std::size_t count, std::uint32_t file) {
  while (count > 0) {
    Stretch again{};
    std::size_t end = size_;
    if (!is_plain()) {
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

void FileRuns::make_plain() {
  entries_ = size_;
  stretches_ = {};
  hints_ = {};
  first_of_last_ = narrow<std::uint32_t>(size_);  // the entries of that file may have changed
}

void FileRuns::shrink() {
  stretches_.shrink_to_fit();
  hints_.shrink_to_fit();
}

void FileRuns::begin_stretch(std::uint32_t entry, std::uint32_t file) {
  if (is_plain()) {
    stretches_.push_back({});
    grow(0);
  }
  stretches_.push_back({narrow<std::uint32_t>(size_), entry, file});
}

void FileRuns::grow(std::size_t count) {
  size_ += count;
  if (is_plain()) return;
  while (hints_.size() * hint_step < size_)
    hints_.push_back(narrow<std::uint32_t>(stretches_.size() - 1));
}

}  // namespace reshard
