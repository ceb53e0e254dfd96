#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/cells/round.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// The row-major bytes of a logical tensor (logical_pieces), one block after the other, each as a
/// round that gathers it from its files: for consumers that need the bytes in order.
class OrderedBlocks {
 public:
  /// Errors of kind source: as make_plan() for the source's side.
  OrderedBlocks(Model const& model, Catalog const& source, TensorId tensor);

  std::uint64_t bytes() const { return bytes_; }

  /// The round that reads the next block and writes it to `file` at its offset in the tensor: as
  /// many bytes as fit in `staging_bytes` of memory. Pre: not done(). An Error of kind resources if
  /// neighbours are so far apart in files that none fit.
  RoundWork next(std::uint32_t file, std::uint64_t staging_bytes);
  bool done() const { return at_ == bytes_; }

 private:
  RoundWork round(std::uint32_t file, std::uint64_t end) const;

  std::string name_;
  std::vector<Region> regions_;      ///< dst_offset_bytes: in the tensor, ascending
  std::vector<ByteDim> dims_;        ///< of each region: by to_stride, descending, all above zero
  std::vector<std::uint64_t> ends_;  ///< by region: one past its last byte in the tensor
  std::uint64_t element_bytes_ = 1;
  std::uint64_t bytes_ = 0;
  std::uint64_t at_ = 0;
  std::uint64_t block_bytes_ = 0;  ///< of the last block; 0: not yet known
};

}  // namespace reshard
