#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/files/file_runs.hpp"
#include "core/base/tables/made_iterator.hpp"
#include "core/base/tables/shared_shape.hpp"
#include "core/base/text/shared_text.hpp"

namespace reshard {

/// One stored tensor with its boxes: StoredTable::chunks[first_chunk, +chunk_count). A tensor that
/// is not cut has one.
struct StoredTensor {
  SharedText name;
  DType dtype = DType::u8;
  SharedShape shape;
  std::uint32_t first_chunk = 0;
  std::uint32_t chunk_count = 0;
};

/// A list of tensors, 24 bytes each, except for those that repeat the file before (FileRuns).
/// Elements are made on access, so there are no references to them.
class StoredTensors {
 public:
  using value_type = StoredTensor;
  using Iterator = MadeIterator<StoredTensors, StoredTensor>;

  std::size_t size() const { return runs_.size(); }
  bool empty() const { return size() == 0; }
  StoredTensor operator[](std::size_t at) const {
    StoredTensor tensor = stored(at);
    tensor.first_chunk += static_cast<std::uint32_t>(at);
    return tensor;
  }
  SharedText const& name(std::size_t at) const { return stored(at).name; }
  DType dtype(std::size_t at) const { return stored(at).dtype; }
  SharedShape shape(std::size_t at) const { return stored(at).shape; }
  StoredTensor front() const { return (*this)[0]; }
  StoredTensor back() const { return (*this)[size() - 1]; }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

  void reserve(std::size_t count) { entries_.reserve(count); }
  /// Adds a tensor. With the file of its only chunk it is not stored if the file before has the
  /// same one in its place.
  void push_back(StoredTensor tensor, std::uint32_t file = FileRuns::as_stored);
  /// Appends tensors [first, +count), each of one chunk, once more as those of another file, with
  /// chunks from `first_chunk` on.
  void repeat(std::size_t first, std::size_t count, std::uint32_t first_chunk, std::uint32_t file);
  void set(std::size_t at, StoredTensor tensor);
  /// Calls `with` with a copy of tensor `at`, which then replaces the tensor.
  template <class With>
  void change(std::size_t at, With const& with) {
    StoredTensor changed = (*this)[at];
    with(changed);
    set(at, std::move(changed));
  }
  /// Keeps the tensors for which `is_kept(tensor)` holds.
  template <class IsKept>
  void keep_if(IsKept is_kept) {
    StoredTensors kept;
    for (StoredTensor const& tensor : *this)
      if (is_kept(tensor)) kept.push_back(tensor);
    *this = std::move(kept);
  }

 private:
  StoredTensor const& stored(std::size_t at) const { return entries_[runs_[at].entry]; }

  FileRuns runs_;
  std::vector<StoredTensor>
      entries_;  ///< of runs_; first_chunk is counted from the tensor's number
};

}  // namespace reshard
