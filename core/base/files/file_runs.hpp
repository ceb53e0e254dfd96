#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reshard {

/// Tells of a list whose elements lie in files which of its elements repeat those of the file
/// before, as those of 8,192 ranks do: only the others are stored by the owner of the list, and
/// have numbers as its entries. A file that repeats another takes 12 bytes.
class FileRuns {
 public:
  /// The file of an element that is not the same as another one's: that of its entry.
  static constexpr std::uint32_t as_stored = 0xffffffffU;

  /// Of an element: the number of its entry, and its file.
  struct Place {
    std::uint32_t entry = 0;
    std::uint32_t file = as_stored;
  };

  std::size_t size() const { return size_; }
  /// Whether nothing is repeated: element i is entry i.
  bool is_plain() const { return stretches_.empty(); }
  Place operator[](std::size_t at) const {
    if (is_plain()) return {static_cast<std::uint32_t>(at), as_stored};
    Stretch const& stretch = stretches_[stretch_of(at)];
    return {stretch.entry + static_cast<std::uint32_t>(at - stretch.begin), stretch.file};
  }

  /// Adds an element. `is_alike(e)` tells whether it differs from entry e in its file only. Returns
  /// whether it repeats one; if not, the owner has to store it as the next entry.
  template <class IsAlike>
  bool add(std::uint32_t file, IsAlike const& is_alike) {
    auto const alike = [&](std::size_t entry) { return entry < entries_ && is_alike(entry); };
    if (repeats(file) && alike(next_repeated())) {
      grow(1);
      return true;
    }
    bool const new_file = size_ == 0 || file != last_file_;
    if (new_file && size_ > 0 && file != as_stored && alike(first_of_last_)) {
      begin_stretch(first_of_last_, file);
      last_file_ = file;
      grow(1);
      return true;
    }
    add_entry(file, new_file);
    return false;
  }
  /// Appends elements [first, +count) again, as those of another file.
  void repeat(std::size_t first, std::size_t count, std::uint32_t file);
  /// All elements, as `of(i)` gives them, with which the owner replaces its entries: then nothing
  /// is repeated.
  template <class Of>
  auto take_all(Of const& of) {
    std::vector<decltype(of(std::size_t{0}))> all;
    all.reserve(size_);
    for (std::size_t i = 0; i < size_; ++i) all.push_back(of(i));
    make_plain();
    return all;
  }
  void shrink();

 private:
  void make_plain();
  /// Elements from `begin` on, up to the next stretch: entries from `entry` on, in `file`.
  struct Stretch {
    std::uint32_t begin = 0;
    std::uint32_t entry = 0;
    std::uint32_t file = as_stored;
  };
  static constexpr std::size_t hint_step = 32;

  std::size_t stretch_of(std::size_t at) const {
    std::size_t stretch = hints_[at / hint_step];
    while (stretch + 1 < stretches_.size() && stretches_[stretch + 1].begin <= at) ++stretch;
    return stretch;
  }
  /// Whether the last stretch repeats entries as those of this file.
  bool repeats(std::uint32_t file) const {
    return !is_plain() && stretches_.back().file == file && file != as_stored;
  }
  /// The entry that would continue the last stretch.
  std::size_t next_repeated() const {
    return stretches_.back().entry + (size_ - stretches_.back().begin);
  }
  void add_entry(std::uint32_t file, bool new_file);
  void begin_stretch(std::uint32_t entry, std::uint32_t file);
  /// Adds `count` elements to the last stretch, if there are stretches.
  void grow(std::size_t count);

  std::size_t size_ = 0;
  std::size_t entries_ = 0;           ///< that the owner stores
  std::vector<Stretch> stretches_;    ///< empty if nothing is repeated
  std::vector<std::uint32_t> hints_;  ///< the stretch of every hint_step-th element
  std::uint32_t last_file_ = 0;       ///< of the last element
  std::uint32_t first_of_last_ = 0;   ///< the first entry of that file
};

}  // namespace reshard
