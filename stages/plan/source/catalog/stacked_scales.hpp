#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/text/json.hpp"
#include "core/plan/views/source_view.hpp"

namespace reshard {

/// Where the scale of one expert's weight lies in a tensor with those of all experts of a layer, as
/// transformers saves FP8 that it has made while loading: weights apart, scales together.
struct StackedScale {
  std::string name;  ///< "….experts.gate_up_proj_scale_inv"
  Index expert = 0;
  Index part = 0;   ///< of the rows: gate 0, up 1
  Index parts = 1;  ///< 2 of gate and up
};

/// Of "….experts.3.up_proj.weight_scale_inv", w1, w2 and w3 likewise; nothing for another name.
std::optional<StackedScale> stacked_scale(std::string_view scale);

/// The place of that scale in the stored tensor. `rows` of the weight; `blocks`: weight_block_size
/// of config.json. Nothing where the tensor has another shape, or blocks hold rows of gate and up.
std::optional<StoredPlace> place_in_stack(StoredPlace stored, StackedScale const& scale, Index rows,
                                          Json const& blocks);

}  // namespace reshard
