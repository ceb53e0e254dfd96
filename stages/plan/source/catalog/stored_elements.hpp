#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/targets/target.hpp"
#include "core/layout/pieces/element_place.hpp"
#include "core/mapping/model.hpp"

namespace reshard {

/// One stored tensor of a checkpoint, as the second arithmetic sees it (element_place.hpp).
struct StoredElements {
  std::size_t stored = 0;  ///< in StoredTable::tensors
  ElementRule rule;
  std::vector<Index> shape;  ///< by the rule; the file's own may have another view of the bytes
  /// The logical tensors that it holds, with the slot of a state in front of "(": "attn.q
  /// (exp_avg)". Master weights have one word in all forms of state.
  std::vector<std::string> tensors;
  std::string slot;  ///< "" for weights
  int add = 0;       ///< what stored values have over logical ones
  bool copy = false;
};

/// Every stored tensor that the maps describe, with the rule of its elements.
struct ElementTable {
  AxisTable axes;
  std::vector<StoredElements> tensors;
  bool masters_alone = false;  ///< the weights are the master weights, and there are no others
  std::vector<std::size_t> not_described;  ///< in StoredTable::tensors: state in flat buffers and
                                           ///< lists, and what maps drop
};

/// From names, shapes and layout parameters: the source's facts and maps give the names that are
/// expected (Side::names), and nothing is taken from its catalogue. Errors as of
/// read_source_model(). A rule whose shape is not that of the header is an Error of kind
/// self_check.
ElementTable element_table(Checkpoint const& checkpoint, PlanRequest const& request);

/// The same by stored names alone: every tensor has one axis for each dimension.
ElementTable named_element_table(Checkpoint const& checkpoint, std::string const& prefix);

}  // namespace reshard
