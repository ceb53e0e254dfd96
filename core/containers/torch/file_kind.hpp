#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace reshard {

/// The kind of a file that is not a torch file, by its beginning, as the end of a sentence: "a tar
/// archive, …".
std::string file_kind(std::span<std::byte const> beginning);

/// Whether a file with these first bytes may be of the safetensors format.
bool begins_like_safetensors(std::span<std::byte const> beginning);

}  // namespace reshard
