#pragma once

#include <filesystem>
#include <string_view>

namespace reshard {

/// The behaviour if the target's name is taken.
enum class ExistingTarget { refuse, replace };

/// Whether the name is taken; an Error of kind target if it may not be replaced.
bool check_existing(std::filesystem::path const& target, ExistingTarget existing);

/// Prepares the place of the target and returns its path: makes its folder; its name is free or may
/// be replaced. An Error of kind target, or resources on a full disk.
std::filesystem::path ready_place(std::filesystem::path const& target, ExistingTarget existing);

/// Throws the errors of ready_place(), and of making a folder there, that permissions and mounts
/// show, without making any.
void look_at_place(std::filesystem::path const& target, ExistingTarget existing);

/// Throws the Error about a path that could not be made: of kind resources for a full disk, else
/// target.
[[noreturn]] void refuse_making(std::filesystem::path const& path, int error_number,
                                std::string_view next);

}  // namespace reshard
