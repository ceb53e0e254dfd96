#pragma once

#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

namespace reshard {

/// An entry of a folder.
struct TreeEntry {
  std::filesystem::path path;
  std::filesystem::file_type type = std::filesystem::file_type::none;  ///< links not followed
};

/// The entries of a folder, unsorted, without a call for each entry if the file system's listing
/// has their types. If it cannot be listed, `problem` is set and the result empty.
std::vector<TreeEntry> listing_of(std::filesystem::path const& folder, std::error_code& problem);

/// All entries below a folder, sorted by path; links are not followed. Folders of one depth are
/// listed many at a time. `problem` is the first one of a listing; the result is then incomplete.
std::vector<TreeEntry> tree_of(std::filesystem::path const& folder, std::error_code& problem);

/// While an object lives, this process lists a folder once for all calls of known_listing_of() and
/// known_tree_of(), from any thread. For a source that a job only reads and whose stamps it
/// compares in the end.
class KnownListings {
 public:
  KnownListings();
  ~KnownListings();
  KnownListings(KnownListings const&) = delete;
  KnownListings& operator=(KnownListings const&) = delete;
};

/// As listing_of() and tree_of(), from the known listings where there are any.
std::vector<TreeEntry> known_listing_of(std::filesystem::path const& folder,
                                        std::error_code& problem);
std::vector<TreeEntry> known_tree_of(std::filesystem::path const& folder, std::error_code& problem);
/// The known listing; nullopt if the folder has not been listed.
std::optional<std::vector<TreeEntry>> known_listing(std::filesystem::path const& folder);

}  // namespace reshard
