#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <system_error>

#include "core/formats/manifest/manifest.hpp"

namespace reshard {

/// The files that a conversion has written, by its manifest and with it; paths below the target.
/// The manifest alone when it lists none.
std::set<std::string> written_files(Manifest const& manifest);

/// Whether a folder that leads to none of the files counts as foreign, when it is empty.
enum class Folders { count, ignore };

/// The first file or folder below `folder` that is none of these files and leads to none, "" when
/// there is none, or none before `error`.
std::string find_stranger(std::filesystem::path const& folder, std::set<std::string> const& files,
                          Folders folders, std::error_code& error);

/// The same, with empty folders. What cannot be listed counts as foreign.
std::string stranger_in(std::filesystem::path const& folder, std::set<std::string> const& files);

}  // namespace reshard
