#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reshard {

/// An offset in a file, and the number of what is there.
struct FileEntry {
  std::uint64_t offset_bytes = 0;
  std::uint32_t file = 0;
  std::uint32_t form = 0;
  friend bool operator==(FileEntry const&, FileEntry const&) = default;
};

/// A list of entries, 16 bytes each. Where a file has the entries of the file before it at the same
/// offsets, as those of 8,192 ranks do, these are stored once, and 12 bytes for the file. Entries
/// are made on access.
class FileEntries {
 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  FileEntry operator[](std::size_t at) const {
    if (stretches_.empty()) return entries_[at];
    Stretch const& stretch = stretches_[stretch_of(at)];
    FileEntry one = entries_[stretch.entry + (at - stretch.begin)];
    if (stretch.file != as_stored) one.file = stretch.file;
    return one;
  }

  void reserve(std::size_t count) { entries_.reserve(count); }
  void push_back(FileEntry const& entry);
  /// Replaces entry `at`.
  void set(std::size_t at, FileEntry const& entry);
  /// Appends entries [first, +count) again, as those of another file.
  void repeat(std::size_t first, std::size_t count, std::uint32_t file);

 private:
  /// Entries from `begin` on, up to the next stretch: those of entries_ from `entry` on, in `file`.
  struct Stretch {
    std::uint32_t begin = 0;
    std::uint32_t entry = 0;
    std::uint32_t file = as_stored;
  };
  static constexpr std::uint32_t as_stored = 0xffffffffU;
  static constexpr std::size_t hint_step = 32;

  std::size_t stretch_of(std::size_t at) const {
    std::size_t stretch = hints_[at / hint_step];
    while (stretch + 1 < stretches_.size() && stretches_[stretch + 1].begin <= at) ++stretch;
    return stretch;
  }
  /// Whether entries_[at] is `entry` in another file.
  bool is_alike(std::size_t at, FileEntry const& entry) const {
    return at < entries_.size() && entries_[at].offset_bytes == entry.offset_bytes &&
           entries_[at].form == entry.form;
  }
  bool repeats_on(FileEntry const& entry) const;
  void begin_stretch(std::uint32_t entry, std::uint32_t file);
  /// Adds `count` entries to the last stretch, if there are stretches.
  void grow(std::size_t count);

  std::size_t size_ = 0;
  std::vector<FileEntry> entries_;    ///< those that repeat others excepted
  std::vector<Stretch> stretches_;    ///< empty if nothing is repeated
  std::vector<std::uint32_t> hints_;  ///< the stretch of every hint_step-th entry
  std::uint32_t last_file_ = 0;       ///< of the last entry
  std::uint32_t first_of_last_ = 0;   ///< in entries_, the first entry of that file
};

}  // namespace reshard
