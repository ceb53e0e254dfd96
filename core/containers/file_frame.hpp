#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file_segment.hpp"

namespace reshard {

/// Bytes of a file whose CRC-32 its frame holds.
struct SummedRecord {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

/// What a file that is to be written has around the bytes of its tensors. Whoever writes it knows
/// no format: it puts the header and the skeleton there first, then the tensors, then the rest in
/// the skeleton's place.
class FileFrame {
 public:
  virtual ~FileFrame() = default;
  /// The first bytes, which stay as they are; "" for a file without.
  virtual std::string_view header() const { return ""; }
  /// What is there until all tensors are written, for those who open the file meanwhile.
  virtual std::span<FileSegment const> skeleton() const { return {}; }
  /// Of which bytes rest() wants the CRC-32, in this order.
  virtual std::vector<SummedRecord> records() const { return {}; }
  /// What is there afterwards but for the header, without overlap. `digests` are those of the
  /// job's tensors.
  virtual std::vector<FileSegment> rest(std::span<std::uint32_t const> crc32,
                                        std::span<std::uint64_t const> digests) const {
    (void)crc32;
    (void)digests;
    return {};
  }
};

}  // namespace reshard
