#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "core/formats/manifest/manifest.hpp"

namespace reshard {

/// The files that a conversion has written, by its manifest and with it; paths below the target.
/// The manifest alone when it lists none.
std::set<std::string> written_files(Manifest const& manifest);

/// Whether one of the files is in this folder or below it.
bool leads_to_one_of(std::set<std::string> const& files, std::string const& folder);

/// Whether a folder that leads to none of the files counts as foreign, when it is empty.
enum class Folders { count, ignore };

/// The first file or folder below `folder` that is none of these files and leads to none, "" when
/// there is none, or none before `error`.
std::string find_stranger(std::filesystem::path const& folder, std::set<std::string> const& files,
                          Folders folders, std::error_code& error);

/// Files and folders that do not belong to what is there: names below it.
struct Strangers {
  std::vector<std::string> first;  ///< the first few, sorted
  std::size_t count = 0;           ///< of all; a folder of which nothing belongs counts as one
};

/// Files and folders that `belongs(path, is_folder)` denies. A folder that cannot be listed counts
/// as foreign.
Strangers strangers_in(std::filesystem::path const& folder,
                       std::function<bool(std::string const&, bool)> const& belongs);

/// "a, b and 3 more".
std::string text_of(Strangers const& strangers);

/// As find_stranger, with empty folders. What cannot be listed counts as foreign.
std::string stranger_in(std::filesystem::path const& folder, std::set<std::string> const& files);

}  // namespace reshard
