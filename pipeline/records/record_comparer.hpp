#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/io/file_set.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// Compares zip records of a source with the CRC-32 that their archives have recorded.
class RecordComparer {
 public:
  /// Both outlive the comparer; the catalogue is of the source, and names tensors in faults.
  RecordComparer(Checkpoint const& source, Catalog const& catalog)
      : source_(source), catalog_(catalog), files_(source.files, FileSet::Access::read) {}

  /// `crc32` is that of the bytes that were read. A record without one is not compared.
  void compare(StoredRecord const& record, std::uint32_t crc32);

  std::size_t compared() const { return compared_; }
  /// File, record, tensors and both sums of each that differs.
  std::vector<std::string> const& faults() const { return faults_; }

 private:
  std::optional<std::uint32_t> stored(StoredRecord const& record);
  std::string fault(StoredRecord const& record, std::uint32_t crc32, std::uint32_t recorded);
  std::string tensors_in(StoredRecord const& record) const;

  Checkpoint const& source_;
  Catalog const& catalog_;
  FileSet files_;
  std::size_t compared_ = 0;
  std::vector<std::string> faults_;
};

}  // namespace reshard
