#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/tables/integers.hpp"
#include "core/base/tables/made_iterator.hpp"
#include "core/containers/file_entries.hpp"
#include "core/containers/id_table.hpp"
#include "core/containers/numbered.hpp"

namespace reshard {

/// Short lists of integers (offsets and sizes of chunks), by number; each distinct list is stored
/// once.
class IndexLists {
 public:
  using Id = std::uint32_t;
  Id add(std::span<Index const> list);
  std::span<Index const> operator[](Id id) const {
    return {values_.data() + begin_[id], begin_[id + 1] - begin_[id]};
  }
  std::size_t size() const { return begin_.size() - 1; }

 private:
  std::vector<Index> values_;
  std::vector<std::size_t> begin_{0};
  IdTable table_;
};

/// The bytes of one stored item: [offset_bytes, +size_bytes) of a file, by its number.
struct ItemPlace {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  friend bool operator==(ItemPlace const&, ItemPlace const&) = default;
};

/// A chunk: a box of a tensor, rows [offset, offset + size) of every dimension, and its item.
struct StoredChunk {
  IndexLists::Id offsets = 0;
  IndexLists::Id sizes = 0;
  ItemPlace item;
};

/// A list of chunks, each an entry of FileEntries: offsets, sizes and bytes that several have in
/// common are stored once. Elements are made on access, so there are no references to them.
class StoredChunks {
 public:
  using Iterator = MadeIterator<StoredChunks, StoredChunk>;

  /// Chunks [first, +count) of a list.
  class Run {
   public:
    Run(StoredChunks const& chunks, std::size_t first, std::size_t count)
        : chunks_(&chunks), first_(first), count_(count) {}
    Iterator begin() const { return {chunks_, first_}; }
    Iterator end() const { return {chunks_, first_ + count_}; }
    std::size_t size() const { return count_; }
    bool empty() const { return count_ == 0; }
    StoredChunk operator[](std::size_t i) const { return (*chunks_)[first_ + i]; }
    StoredChunk front() const { return (*this)[0]; }

   private:
    StoredChunks const* chunks_;
    std::size_t first_;
    std::size_t count_;
  };

  void reserve(std::size_t count) { entries_.reserve(count); }
  void push_back(StoredChunk const& chunk) { entries_.push_back(entry(chunk)); }
  /// Replaces chunk `at`.
  void set(std::size_t at, StoredChunk const& chunk) { entries_.set(at, entry(chunk)); }
  /// Appends chunks [first, +count) again, as those of another file.
  void repeat(std::size_t first, std::size_t count, std::uint32_t file) {
    entries_.repeat(first, count, file);
  }

  StoredChunk operator[](std::size_t at) const {
    FileEntry const one = entries_[at];
    Form const& form = forms_[one.form];
    return {form.offsets, form.sizes, {one.file, one.offset_bytes, form.size_bytes}};
  }
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  /// The common values of chunks of the same box of tensors of the same shape.
  struct Form {
    IndexLists::Id offsets = 0;
    IndexLists::Id sizes = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t hash() const { return hash_step(hash_of(offsets, sizes), size_bytes); }
    friend bool operator==(Form const&, Form const&) = default;
  };
  FileEntry entry(StoredChunk const& chunk) {
    return {chunk.item.offset_bytes, chunk.item.file,
            forms_.number_of({chunk.offsets, chunk.sizes, chunk.item.size_bytes})};
  }

  FileEntries entries_;
  Numbered<Form> forms_;
};

}  // namespace reshard
