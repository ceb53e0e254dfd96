#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/tables/made_iterator.hpp"
#include "core/containers/file_entries.hpp"
#include "core/containers/numbered.hpp"
#include "core/containers/stored_record.hpp"

namespace reshard {

/// A list of records of zip archives, each an entry of FileEntries and 4 bytes for its CRC-32 if
/// one is known: common values are stored once. Elements are made on access, so there are no
/// references to them.
class StoredRecords {
 public:
  using Iterator = MadeIterator<StoredRecords, StoredRecord>;

  void reserve(std::size_t count);
  /// Pre: its archive is not empty.
  void push_back(StoredRecord const& record);

  StoredRecord operator[](std::size_t at) const;
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  /// The common values of records of the same size. `archive_bytes` is 0 if the archive is the
  /// file.
  struct Form {
    std::uint64_t size_bytes = 0;
    std::uint64_t archive_bytes = 0;
    std::uint64_t before_bytes = 0;  ///< from the start of the archive, if it is not the file
    bool has_crc32 = false;
    std::uint64_t hash() const {
      return hash_step(hash_step(hash_step(hash_seed, size_bytes), archive_bytes),
                       before_bytes * 2 + (has_crc32 ? 1 : 0));
    }
    friend bool operator==(Form const&, Form const&) = default;
  };
  bool is_the_file(StoredRecord const& record);

  FileEntries entries_;
  std::vector<std::uint32_t> crc32_;  ///< parallel to the records; empty while none is known
  Numbered<Form> forms_;
  std::vector<std::uint64_t> file_bytes_;  ///< of files that are archives; 0: not known to be one
};

}  // namespace reshard
