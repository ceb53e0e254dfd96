#include "core/containers/file_entries.hpp"

namespace reshard {

void FileEntries::push_back(FileEntry const& entry) {
  bool const repeats = runs_.add(entry.file, [&](std::size_t at) {
    return entries_[at].offset_bytes == entry.offset_bytes && entries_[at].form == entry.form;
  });
  if (!repeats) entries_.push_back(entry);
}

void FileEntries::set(std::size_t at, FileEntry const& entry) {
  if (!runs_.is_plain()) entries_ = runs_.take_all([&](std::size_t i) { return (*this)[i]; });
  entries_[at] = entry;
}

}  // namespace reshard
