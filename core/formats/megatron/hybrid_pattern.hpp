#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.hpp"

namespace reshard::megatron {

/// What args say of a hybrid model's layers, one letter for each. "M*|-M|E/*E": `|` between the
/// stages of the pipeline (Megatron-Core 0.17), `/` before the layers of each depth of multi-token
/// prediction.
struct HybridPattern {
  std::string key;                  ///< the argument that has it: "hybrid_layer_pattern", or
                                    ///< "hybrid_override_pattern" before
  std::vector<std::string> stages;  ///< letters of the decoder: one text without `|`
  std::string behind;               ///< from the first `/` on, "" without one

  std::size_t decoder_layers() const;
  int depths() const;  ///< how many `/` there are
};

/// Nothing where args have none.
std::optional<HybridPattern> hybrid_pattern(Json const& args);

/// The pattern with a `|` between stages of these sizes, without where there is one stage.
/// Pre: the sizes add up to decoder_layers().
std::string with_stages(HybridPattern const& pattern, std::span<int const> layers);

/// A letter that is none of `letters`, and a length that is not num_layers, are Errors of kind
/// source that begin with `place`.
void check_hybrid_pattern(Json const& args, std::string_view letters, std::string_view place);

}  // namespace reshard::megatron
