#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace reshard {

// For which targets nightly.after has succeeded: `.NAME.after` beside the target NAME, one line
// with the XXH3-128 of its reshard.json. A target that was made again from another source, or by
// another job, has another one.

std::filesystem::path after_memory_of(std::filesystem::path const& target);
/// The target's name, of such a file's name.
std::optional<std::string> target_of_memory(std::string_view file_name);

/// Whether the command has succeeded for the target as it is. False where that cannot be read.
bool after_has_succeeded(std::filesystem::path const& target);
/// Error of kind io or resources.
void remember_after(std::filesystem::path const& target);
/// Removes the file if it is one of ours; what cannot be removed stays.
void forget_after(std::filesystem::path const& target);

}  // namespace reshard
