#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace reshard {

/// What a folder holds.
struct TreeEntry {
  std::filesystem::path path;
  std::filesystem::file_type type = std::filesystem::file_type::none;  ///< of itself: a link is one
};

/// What lies in a folder, unsorted, without a question for each entry where the file system says
/// in the listing what they are. `problem` is set, and the answer empty, when it cannot be listed.
std::vector<TreeEntry> listing_of(std::filesystem::path const& folder, std::error_code& problem);

/// All that lies below a folder, sorted by path; links are not followed. Folders of one depth are
/// listed many at a time. `problem` is the first one of a listing, and the answer of no use then.
std::vector<TreeEntry> tree_of(std::filesystem::path const& folder, std::error_code& problem);

}  // namespace reshard
