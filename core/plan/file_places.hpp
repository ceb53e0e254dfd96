#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace reshard {

/// A byte of a file. Source and target files have their number, views follow the source files.
struct FilePlace {
  std::uint64_t offset_bytes = 0;
  std::uint32_t file = 0;
  std::uint32_t unused = 0;  ///< so that the struct has no padding
};

/// A list of places, of which a plan of 8,192 ranks has millions. Each takes 8 bytes, unless it is
/// beyond 1 TiB of a file or beyond file 2^23.
class FilePlaces {
 public:
  std::size_t size() const { return words_.size(); }
  FilePlace operator[](std::size_t i) const {
    std::uint64_t const word = words_[i];
    if (word < first_wide)
      return {word & (offset_end - 1), static_cast<std::uint32_t>(word >> offset_bits)};
    return wide_[word - first_wide];
  }
  void add(FilePlace const& place) { words_.push_back(word_of(place)); }
  void add(std::span<FilePlace const> places) {
    for (FilePlace const& place : places) add(place);
  }
  void add(FilePlaces const& others);
  void set(std::size_t i, FilePlace const& place) { words_[i] = word_of(place); }
  void reserve(std::size_t count) { words_.reserve(count); }
  /// Frees the spare capacity for further places.
  void shrink() { words_.shrink_to_fit(); }

  /// The content: equal for lists that were made of equal places in the same order.
  std::span<std::uint64_t const> words() const { return words_; }
  std::span<FilePlace const> wide() const { return wide_; }

 private:
  static constexpr unsigned offset_bits = 40;
  static constexpr std::uint64_t offset_end = std::uint64_t{1} << offset_bits;
  static constexpr std::uint64_t first_wide = std::uint64_t{1} << 63U;

  std::uint64_t word_of(FilePlace const& place);

  /// Below first_wide a place, from there on the number of one in wide_.
  std::vector<std::uint64_t> words_;
  std::vector<FilePlace> wide_;
};

}  // namespace reshard
