#pragma once

#include <string_view>

#include "core/base/text/json.hpp"

namespace reshard::mistral {

/// The config.json of Hugging Face that says what a params.json of Mistral does, without a dtype.
/// model_type is mistral, ministral (windows in some layers), ministral3 (YaRN with queries that
/// grow with their position), mixtral or mistral4 (latent attention). Members and defaults are
/// those of transformers' convert_mistral_weights_to_hf.py and its siblings, and of vLLM's
/// config_format = "mistral". Pre: an object. Errors of kind source: a size that is missing, a
/// model that has no such config.
Json config_of_params(Json const& params, std::string_view place);

/// The inverse, for a config.json with the defaults of its class (completed_config()). An Error of
/// kind usage for a model that params.json cannot describe: `place` names the config.
Json params_of_config(Json const& config, std::string_view place);

}  // namespace reshard::mistral
