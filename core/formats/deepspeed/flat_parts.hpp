#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/tables/integers.hpp"

namespace reshard::deepspeed {

// The parts of the parameters of one flat group in the vectors of the ranks that share them.
// Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py (get_flat_partition,
// _create_param_mapping) and runtime/zero/partition_parameters.py (_partition_param).

/// Elements [begin, end) of a parameter, row-major, from element `at` of a rank's vector on.
struct FlatPart {
  std::size_t parameter = 0;
  Index begin = 0;
  Index end = 0;
  Index at = 0;
  friend bool operator==(FlatPart const&, FlatPart const&) = default;
};

/// Stages 1 and 2: the parameters end to end, padded to a multiple of 2 * ranks, and cut into
/// `ranks` equal vectors. By rank, in order. `elements` are those of each parameter.
///
///   (35, 21) on 2 ranks -> { a[0:28] } and { a[28:35] at 0, b[0:21] at 7 }
///
/// Pre: ranks > 0, no number is negative.
std::vector<std::vector<FlatPart>> joined_parts(std::span<Index const> elements, Index ranks);

/// Stage 3: each parameter is cut into `ranks` equal pieces, the last ones padded, and a rank has
/// its pieces end to end.
///
///   (35, 21) on 2 ranks -> { a[0:18], b[0:11] at 18 } and { a[18:35], b[11:21] at 18 }
///
/// Pre: ranks > 0, no number is negative.
std::vector<std::vector<FlatPart>> split_parts(std::span<Index const> elements, Index ranks);

/// The number of elements of a rank's vector in stage 3.
Index split_size(std::span<Index const> elements, Index ranks);

}  // namespace reshard::deepspeed
