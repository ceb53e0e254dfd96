#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/mapping/sides/side.hpp"
#include "core/plan/plan.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard::test {

/// Files in memory.
using Files = std::vector<std::vector<std::byte>>;

/// One side of a job in memory: a catalogue and files whose every element is what it should be.
struct World {
  Catalog catalog;
  Files files;  ///< right bytes
  Files blank;  ///< the same sizes, padding right, everything else 0xee
};

/// A value for the element with these indices of a tensor's axes: different for neighbours in every
/// direction.
std::uint32_t element_value(TensorId tensor,
                            std::vector<std::pair<AxisId, Index>> const& coordinates);

/// Every stored tensor of a side in one file per place, with gaps between tensors. An element's
/// value tells which logical element it is.
World make_world(Model const& model, Side const& side, SampleMesh const& at, DType dtype);
/// The same for a side that holds whole tensors: one file.
World make_global_world(Model const& model, Side const& side, DType dtype);

/// Carries out one round: reads from `source`, writes to `target`. Messages are not looked at.
void carry_out(RoundWork const& round, std::vector<std::byte>& staging, Files const& source,
               Files& target);

/// One strided copy inside a staging block.
void copy_strided_bytes(StridedCopy const& copy, std::vector<std::byte>& staging);

}  // namespace reshard::test
