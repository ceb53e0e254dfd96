#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file_segment.hpp"

namespace reshard {

/// Bytes of a file whose CRC-32 is part of its frame.
struct SummedRecord {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

/// The bytes of a target file around those of its tensors. The writer is independent of the format:
/// it writes the header and the skeleton first, then the tensors, then the rest in place of the
/// skeleton.
class FileFrame {
 public:
  virtual ~FileFrame() = default;
  /// The first bytes of the file, which never change; "" if there are none.
  virtual std::string_view header() const { return ""; }
  /// The segments until all tensors are written, for readers that open the file meanwhile.
  virtual std::span<FileSegment const> skeleton() const { return {}; }
  /// The bytes whose CRC-32 rest() takes, in this order.
  virtual std::vector<SummedRecord> records() const { return {}; }
  /// The final segments except for the header, without overlap. `digests` are those of the job's
  /// tensors.
  virtual std::vector<FileSegment> rest(std::span<std::uint32_t const> crc32,
                                        std::span<std::uint64_t const> digests) const {
    (void)crc32;
    (void)digests;
    return {};
  }
};

}  // namespace reshard
