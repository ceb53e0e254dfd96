#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"

namespace reshard::megatron {

/// The layers of a hybrid model in args, one letter for each. "M*|-M|E/*E": `|` between the stages
/// of the pipeline (Megatron-Core 0.17), `/` before the layers of each depth of multi-token
/// prediction.
struct HybridPattern {
  std::string key;                  ///< the argument: "hybrid_layer_pattern", or
                                    ///< "hybrid_override_pattern" in older releases
  std::vector<std::string> stages;  ///< letters of the decoder: one text without `|`
  std::string behind;               ///< the text from the first `/` on, "" without one

  std::size_t decoder_layers() const;
  int depths() const;  ///< the number of `/`
};

/// nullopt if args have none.
std::optional<HybridPattern> hybrid_pattern(Json const& args);

/// The pattern with a `|` between stages of these sizes, none for one stage. Pre: the sizes add up
/// to decoder_layers().
std::string with_stages(HybridPattern const& pattern, std::span<int const> layers);

/// Throws an Error of kind source that begins with `place` for a letter not in `letters`, and for a
/// length other than num_layers.
void check_hybrid_pattern(Json const& args, std::string_view letters, std::string_view place);

}  // namespace reshard::megatron
