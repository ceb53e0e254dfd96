#pragma once

#include <filesystem>
#include <string_view>

namespace reshard {

/// What to do when the target's name is taken.
enum class ExistingTarget { refuse, replace };

/// Whether the name is taken; an Error of kind target where it then may not be replaced.
bool check_existing(std::filesystem::path const& target, ExistingTarget existing);

/// Where the target will be: its folder is made, its name is free or may be replaced. Error of kind
/// target, or resources on a full disk.
std::filesystem::path ready_place(std::filesystem::path const& target, ExistingTarget existing);

/// Makes nothing and says what ready_place() and the making of a folder there would refuse, as far
/// as permissions and mounts tell.
void look_at_place(std::filesystem::path const& target, ExistingTarget existing);

/// What could not be made: a full disk is a matter of resources, anything else one of the target.
[[noreturn]] void refuse_making(std::filesystem::path const& path, int error_number,
                                std::string_view next);

}  // namespace reshard
