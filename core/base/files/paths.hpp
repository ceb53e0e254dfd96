#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/files/file_paths.hpp"

namespace reshard {

// The one rule for paths that are compared or shown. Three forms, each of which the next one
// implies:

/// Without ".", "..", repeated slashes, and a slash at the end ("dir/" is "dir"); as relative as it
/// was.
std::filesystem::path normal_path(std::filesystem::path const& path);

/// Absolute and normal; links are left as they are.
std::filesystem::path full_path(std::filesystem::path const& path);

/// Absolute and normal, links resolved as far as the path exists. If links cannot be followed,
/// `problem` is set and the result is full_path().
std::filesystem::path resolved_path(std::filesystem::path const& path, std::error_code& problem);
std::filesystem::path resolved_path(std::filesystem::path const& path);

/// resolved_path() of many paths, as texts, in several threads; each folder is resolved once.
std::vector<std::string> resolved_paths(FilePaths const& paths);

/// The hidden file next to `path`: ".NAME" plus the ending, where NAME is the file name of `path`.
std::filesystem::path hidden_beside(std::filesystem::path const& path, std::string_view ending);
/// The NAME in the file name of a hidden_beside() path; nullopt for any other file name.
std::optional<std::string> hidden_for(std::string_view file_name, std::string_view ending);

/// Whether `path` is `folder` or lies below it. Both are of one form, full or resolved.
bool holds(std::filesystem::path const& folder, std::filesystem::path const& path);

}  // namespace reshard
