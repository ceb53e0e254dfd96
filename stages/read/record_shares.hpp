#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/containers/stored_records.hpp"
#include "core/plan/round.hpp"

namespace reshard {

/// What some bytes of a record add to its sums. The sums of bytes that are the whole record, each
/// once, are those of whole_record(): the first is then its CRC-32, and by the second one knows
/// that they are.
struct RecordShare {
  std::uint32_t record = 0;
  std::uint32_t crc32 = 0;    ///< combined by xor, starting from crc32_of_zeros()
  std::uint64_t covered = 0;  ///< combined by addition
  friend bool operator==(RecordShare const&, RecordShare const&) = default;
};

/// What `covered` adds up to for bytes [begin, end) of a record, each counted once. Borders inside
/// cancel each other out: a sum of many ranges is that of one range only when the ranges are this
/// range, without a gap and without an overlap (except by chance, one in 2^64).
std::uint64_t covered_by(std::uint64_t begin, std::uint64_t end);

/// Knows where the records of a source lie, and takes their sums of bytes as they are read. Used by
/// several threads at once.
class RecordSums {
 public:
  explicit RecordSums(StoredRecords const& records);

  bool empty() const { return records_.empty(); }
  /// Bytes of a file; what lies in no record adds nothing.
  void add(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes,
           std::vector<RecordShare>& shares) const;
  /// The runs of a part, which are in staging memory. Runs that are too short to be worth their
  /// time add nothing: then the record stays incomplete.
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

  std::vector<Place> records_;  ///< by place
};

}  // namespace reshard
