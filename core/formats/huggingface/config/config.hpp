#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"

namespace reshard::huggingface {

/// One change to config.json: {{"text_config", "num_nextn_predict_layers"}, 0} sets a member (and
/// the objects around it),
/// {{"quantization_config"}, std::nullopt} removes one. Removing what is not there changes nothing.
struct ConfigPatch {
  std::vector<std::string> path;
  std::optional<Json> value;
};

/// config.json as Python writes it: JSON, in which NaN, Infinity and -Infinity may stand for
/// numbers. They read as {"__float__": "NaN"}, which is how transformers 5 writes them.
Json parse_config(std::string_view text, std::string_view place);

/// The config after the patches. Members keep their order, new ones come last.
Json patched_config(Json config, std::span<ConfigPatch const> patches);

/// The bytes of config.json after the patches: everything but the patched members keeps its bytes,
/// so a list of patches that changes nothing returns `text` itself. An empty `text` is an empty
/// object. `place` names the file in errors.
std::string patched_config_text(std::string text, std::span<ConfigPatch const> patches,
                                std::string_view place);

}  // namespace reshard::huggingface
