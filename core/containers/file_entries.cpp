#include "core/containers/file_entries.hpp"

#include <utility>

namespace reshard {

void FileEntries::push_back(FileEntry const& entry) {
  bool const repeats = runs_.add(entry.file, [&](std::size_t at) {
    return entries_[at].offset_bytes == entry.offset_bytes && entries_[at].form == entry.form;
  });
  if (!repeats) entries_.push_back(entry);
}

void FileEntries::set(std::size_t at, FileEntry const& entry) {
  if (!runs_.is_plain()) {
    std::vector<FileEntry> all;
    all.reserve(size());
    for (std::size_t i = 0; i < size(); ++i) all.push_back((*this)[i]);
    entries_ = std::move(all);
    runs_.make_plain();
  }
  entries_[at] = entry;
}

}  // namespace reshard
