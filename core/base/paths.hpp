#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace reshard {

// The one rule for paths that are compared or shown. Three forms, each of which the next one
// implies:

/// Without ".", "..", repeated slashes, and a slash at the end ("dir/" is "dir"); as relative as it
/// was.
std::filesystem::path normal_path(std::filesystem::path const& path);

/// Absolute and normal; links are left as they are.
std::filesystem::path full_path(std::filesystem::path const& path);

/// Absolute and normal, links resolved as far as the path exists. Where links cannot be followed
/// `problem` says so, and this is full_path().
std::filesystem::path resolved_path(std::filesystem::path const& path, std::error_code& problem);
std::filesystem::path resolved_path(std::filesystem::path const& path);

/// The same of many as texts, many at a time; their folders are resolved once each.
std::vector<std::string> resolved_paths(std::vector<std::filesystem::path> const& paths);

/// ".NAME" and the ending, in the folder of `path`, whose name is NAME.
std::filesystem::path hidden_beside(std::filesystem::path const& path, std::string_view ending);
/// The NAME of such a file name; nullopt for any other.
std::optional<std::string> hidden_for(std::string_view file_name, std::string_view ending);

/// Whether `path` is `folder` or lies below it. Both are of one form, full or resolved.
bool holds(std::filesystem::path const& folder, std::filesystem::path const& path);

}  // namespace reshard
