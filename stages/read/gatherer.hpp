#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/plan/views/gathered.hpp"

namespace reshard {

/// Brings stretches of gathered tensors together. Used by one thread.
class Gatherer {
 public:
  /// Fills the parts in turn with bytes of a file, which may be a view, from an offset on.
  using ReadParts = std::function<void(std::uint32_t file, std::uint64_t offset_bytes,
                                       std::span<iovec const> parts)>;
  explicit Gatherer(ReadParts read) : read_(std::move(read)) {}

  /// The elements [first, first + count) of a tensor, row-major.
  void gather(GatheredTensor const& tensor, Index first, Index count, std::byte* into);

 private:
  /// Neighbouring bytes of a file, and their place in what is gathered.
  struct Run {
    std::uint64_t from = 0;
    std::byte* to = nullptr;
    std::size_t bytes = 0;
  };
  void walk(GatheredPart const& part, std::size_t dim, Index from, Index to);
  void add(GatheredPart const& part, CopyDim const& dim, Index from, Index to, Index count);
  void flush(std::uint32_t file);
  void read_group(std::uint32_t file, std::span<Run const> runs, std::size_t bytes);

  ReadParts read_;
  std::vector<Run> runs_;
  std::vector<Index> reach_;  ///< of a part: elements from a dimension's first to its last
  std::vector<iovec> parts_;
  std::vector<std::byte> buffer_;
  // Of the call.
  Index element_bytes_ = 1;
  Index first_ = 0;
  Index end_ = 0;
  std::byte* into_ = nullptr;
};

}  // namespace reshard
