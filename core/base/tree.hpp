#pragma once

#include <filesystem>
#include <optional>
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

/// While one lives, this process lists a folder once for all calls of known_listing_of() and
/// known_tree_of(), from any thread. For a source that a job only reads, and whose files it looks
/// at again in the end.
class KnownListings {
 public:
  KnownListings();
  ~KnownListings();
  KnownListings(KnownListings const&) = delete;
  KnownListings& operator=(KnownListings const&) = delete;
};

/// As listing_of() and tree_of(), by what is known of the folders.
std::vector<TreeEntry> known_listing_of(std::filesystem::path const& folder,
                                        std::error_code& problem);
std::vector<TreeEntry> known_tree_of(std::filesystem::path const& folder, std::error_code& problem);
/// Only what is known: nothing where the folder has not been listed.
std::optional<std::vector<TreeEntry>> known_listing(std::filesystem::path const& folder);

}  // namespace reshard
