#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/files/file_runs.hpp"
#include "core/base/tables/made_iterator.hpp"
#include "core/base/text/shared_text.hpp"
#include "core/plan/file_places.hpp"

namespace reshard {

/// The location of a stored tensor's first element. `file` may be a view. `name` is for messages
/// and listings.
struct Blob {
  Blob() = default;
  Blob(std::uint32_t in_file, std::uint64_t at_bytes, DType of, SharedText named)
      : file(in_file), dtype(of), offset_bytes(at_bytes), name(std::move(named)) {}

  std::uint32_t file = 0;
  DType dtype = DType::u8;
  std::uint64_t offset_bytes = 0;
  SharedText name;
};

/// The blobs of a catalogue, by number. One takes 12 bytes: those of all ranks have few names.
/// Those of a file that repeat the file before take none.
class BlobTable {
 public:
  using Iterator = MadeIterator<BlobTable, Blob>;

  BlobTable() = default;
  BlobTable(std::initializer_list<Blob> blobs) {
    for (Blob const& blob : blobs) add(blob);
  }

  std::size_t size() const { return runs_.size(); }
  bool empty() const { return size() == 0; }
  Blob operator[](std::size_t i) const {
    FileRuns::Place const at = runs_[i];
    FilePlace const place = place_of(at);
    Kind const& kind = known_[kinds_[at.entry]];
    return {place.file, place.offset_bytes, kind.dtype, kind.name};
  }
  std::uint32_t file(std::size_t i) const { return place(i).file; }
  DType dtype(std::size_t i) const { return known_[kinds_[runs_[i].entry]].dtype; }
  FilePlace place(std::size_t i) const { return place_of(runs_[i]); }
  SharedText const& name(std::size_t i) const { return known_[kinds_[runs_[i].entry]].name; }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

  void reserve(std::size_t count) {
    places_.reserve(count);
    kinds_.reserve(count);
  }
  /// Adds a blob and returns its number.
  std::uint32_t add(Blob const& blob);
  void set(std::size_t i, Blob const& blob);
  /// Calls `with` with a copy of blob i, which then replaces the blob.
  template <class With>
  void change(std::size_t i, With const& with) {
    Blob changed = (*this)[i];
    with(changed);
    set(i, changed);
  }
  /// Frees the spare capacity for further blobs, and the index of names.
  void shrink();

 private:
  struct Kind {
    SharedText name;
    DType dtype = DType::u8;
    friend bool operator==(Kind const&, Kind const&) = default;
  };
  struct KindHash {
    std::size_t operator()(Kind const& kind) const {
      return kind.name.hash() * 31 + static_cast<std::size_t>(kind.dtype);
    }
  };

  std::uint32_t kind_of(Blob const& blob);
  FilePlace place_of(FileRuns::Place const& at) const {
    FilePlace place = places_[at.entry];
    if (at.file != FileRuns::as_stored) place.file = at.file;
    return place;
  }

  FileRuns runs_;
  FilePlaces places_;                 ///< of the entries of runs_, and so is kinds_
  std::vector<std::uint32_t> kinds_;  ///< in known_
  std::vector<Kind> known_;
  /// The numbers of all of known_, or none; made when a blob is added.
  std::unordered_map<Kind, std::uint32_t, KindHash> number_of_;
};

}  // namespace reshard
