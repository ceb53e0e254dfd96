#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/range.hpp"
#include "core/containers/hdf5/container.hpp"

namespace reshard::hdf5 {

/// A file in memory that takes room only for pages that were written.
class SparseMemory {
 public:
  SparseMemory();
  ~SparseMemory();
  SparseMemory(SparseMemory const&) = delete;
  SparseMemory& operator=(SparseMemory const&) = delete;

  /// A path by which this process can open it.
  std::string path() const;
  std::uint64_t size_bytes() const;
  /// The bytes written outside of `datasets`, in segments that neither begin nor end with a zero.
  std::vector<FileSegment> written_outside(std::vector<ByteRange> datasets) const;

 private:
  std::uint64_t next(std::uint64_t from, int whence) const;

  int descriptor_ = -1;
};

}  // namespace reshard::hdf5
