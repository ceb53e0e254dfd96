#pragma once

#include <string_view>

namespace reshard::megatron {

/// A key of a routed expert: ".experts." and not ".shared_experts."; shared experts are dense.
bool is_expert(std::string_view name);

/// The local number after "decoder.layers." of the language model; -1 for other keys (a vision
/// model counts its own layers).
int decoder_layer(std::string_view name);

}  // namespace reshard::megatron
