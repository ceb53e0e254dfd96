#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/tree.hpp"

namespace reshard {

/// While one lives, what this thread asks about the names in one folder is answered by a listing of
/// it, made at the first question; so is what it asks about a folder below that it has listed, or
/// that is known (KnownListings). Of scopes inside of each other the outermost keeps what is
/// learnt. For the time in which a checkpoint is recognised, opened and planned: dozens of names
/// are looked for then, and a file system may ask a server for each. What is in a folder that
/// cannot be listed or searched, and an entry that the listing does not tell the type of, are asked
/// about one by one.
class ListedFolders {
 public:
  explicit ListedFolders(std::filesystem::path root);
  ~ListedFolders();
  ListedFolders(ListedFolders const&) = delete;
  ListedFolders& operator=(ListedFolders const&) = delete;

 private:
  friend std::optional<std::filesystem::file_type> listed_type(std::filesystem::path const&);
  friend std::optional<std::vector<TreeEntry>> listed_entries(std::filesystem::path const&);
  friend bool is_listed_folder(std::filesystem::path const&);
  friend std::vector<std::string> names_in(std::filesystem::path const&, std::error_code&);
  friend std::string text_once(std::filesystem::path const&, std::function<std::string()> const&);

  using Names = std::map<std::string, std::filesystem::file_type, std::less<>>;
  /// Null where it is not known, and not to be listed.
  static Names const* listing_in_scope(std::filesystem::path const& folder);
  /// The outermost whose folder this is, or lies in; null where there is none.
  static ListedFolders* keeper_of(std::filesystem::path const& path);
  static Names list(std::filesystem::path const& folder, std::error_code& problem);

  ListedFolders* before_;
  std::filesystem::path root_;
  std::map<std::filesystem::path, Names> listings_;
  std::map<std::pair<std::filesystem::path, bool>, std::string> texts_;
  bool failed_ = false;  ///< the root cannot be listed or searched
};

/// Of a path itself, a link being one, as a listing has it; not_found for a name that is not in it.
/// Nothing where the file system has to be asked.
std::optional<std::filesystem::file_type> listed_type(std::filesystem::path const& path);

/// Whether there is a listing of it, which makes it a folder or a link to one.
bool is_listed_folder(std::filesystem::path const& path);

/// What it holds, unsorted, where there is a listing of it that tells each entry's type.
std::optional<std::vector<TreeEntry>> listed_entries(std::filesystem::path const& folder);

/// What `read` gives for a small file, which several formats read to find out whether they are
/// meant: the same for as long as a scope of a folder above lives.
std::string text_once(std::filesystem::path const& path, std::function<std::string()> const& read);

/// The names in a folder, unsorted. `problem` is set, and the answer empty, when it cannot be
/// listed.
std::vector<std::string> names_in(std::filesystem::path const& folder, std::error_code& problem);

}  // namespace reshard
