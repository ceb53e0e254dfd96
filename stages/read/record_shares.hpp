#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/containers/stored_records.hpp"
#include "core/plan/cells/round.hpp"

namespace reshard {

/// The share of some bytes of a record in its sums. If the bytes are the complete record, each
/// once, the sums are those of whole_record(): `crc32` is then its CRC-32, and `covered` proves the
/// completeness.
struct RecordShare {
  std::uint32_t record = 0;
  std::uint32_t crc32 = 0;    ///< combined by xor, starting from crc32_of_zeros()
  std::uint64_t covered = 0;  ///< combined by addition
  friend bool operator==(RecordShare const&, RecordShare const&) = default;
};

/// The value of `covered` for bytes [begin, end) of a record. Inner borders cancel out: the sum of
/// many ranges equals that of one range only if they cover it without a gap and without an overlap
/// (except by chance, one in 2^64).
std::uint64_t covered_by(std::uint64_t begin, std::uint64_t end);

/// Takes the sums of a source's records from bytes as they are read. Used by several threads at
/// once.
class RecordSums {
 public:
  explicit RecordSums(StoredRecords const& records);

  bool empty() const { return records_.empty(); }
  /// Adds bytes of a file; bytes outside of records do not count.
  void add(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes,
           std::vector<RecordShare>& shares) const;
  /// Adds the runs of a part in staging memory. Runs that are too short to be worth the time are
  /// skipped: then the record stays incomplete.
  void add(DigestPart const& part, std::byte const* staging,
           std::vector<RecordShare>& shares) const;

 private:
  struct Place {
    std::uint32_t file = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t number = 0;
  };
  Place const* find(std::uint32_t file, std::uint64_t begin, std::uint64_t end) const;

  std::vector<Place> records_;  ///< by file and offset
};

}  // namespace reshard
