#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/files/file_runs.hpp"

namespace reshard {

/// An offset in a file, and the number of what is there.
struct FileEntry {
  std::uint64_t offset_bytes = 0;
  std::uint32_t file = 0;
  std::uint32_t form = 0;
  friend bool operator==(FileEntry const&, FileEntry const&) = default;
};

/// A list of entries, 16 bytes each, except for those that repeat the file before (FileRuns).
/// Entries are made on access.
class FileEntries {
 public:
  std::size_t size() const { return runs_.size(); }
  bool empty() const { return size() == 0; }
  FileEntry operator[](std::size_t at) const {
    FileRuns::Place const place = runs_[at];
    FileEntry one = entries_[place.entry];
    if (place.file != FileRuns::as_stored) one.file = place.file;
    return one;
  }

  void reserve(std::size_t count) { entries_.reserve(count); }
  void push_back(FileEntry const& entry);
  /// Replaces entry `at`.
  void set(std::size_t at, FileEntry const& entry);
  /// Appends entries [first, +count) again, as those of another file.
  void repeat(std::size_t first, std::size_t count, std::uint32_t file) {
    runs_.repeat(first, count, file);
  }

 private:
  std::vector<FileEntry> entries_;
  FileRuns runs_;
};

}  // namespace reshard
