#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/dtype.hpp"

namespace reshard::huggingface {

/// The members of a config.json that name the dtype of the weights, the usual one first.
inline constexpr std::array<std::string_view, 2> dtype_members = {"dtype", "torch_dtype"};

/// "bfloat16", also "torch.bfloat16": a dtype that weights have; nothing for any other word.
std::optional<DType> dtype_of_word(std::string_view word);

/// The text of a config.json that states a dtype of weights: in both spellings as they stand, in
/// nested configs too; where there is none, as "torch_dtype", which all releases of transformers
/// read. An empty text stays empty. `place` names the file in errors.
std::string config_with_dtype(std::string text, DType dtype, std::string const& place);

}  // namespace reshard::huggingface
