#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/files/tree.hpp"

namespace reshard {

/// While an object lives, this thread's questions about names in one folder are answered by a
/// listing of it, made at the first question; so are those about a folder below that was listed or
/// is known (KnownListings). Of nested scopes the outermost keeps the listings. Used while a
/// checkpoint is recognised, opened and planned: dozens of names are checked then, and a file
/// system may ask a server for each. Names in a folder that cannot be listed or searched, and
/// entries whose type the listing does not contain, are checked one by one.
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
  /// nullptr if the listing is not known and the folder is not to be listed.
  static Names const* listing_in_scope(std::filesystem::path const& folder);
  /// The outermost scope whose folder is the path or contains it; nullptr if there is none.
  static ListedFolders* keeper_of(std::filesystem::path const& path);
  static Names list(std::filesystem::path const& folder, std::error_code& problem);

  ListedFolders* before_;
  std::filesystem::path root_;
  std::map<std::filesystem::path, Names> listings_;
  std::map<std::pair<std::filesystem::path, bool>, std::string> texts_;
  bool failed_ = false;  ///< the root cannot be listed or searched
};

/// The type of a path, links not followed, from a listing; not_found for a name that is not in it.
/// nullopt if the file system has to be asked.
std::optional<std::filesystem::file_type> listed_type(std::filesystem::path const& path);

/// Whether there is a listing of the path, which is then a folder or a link to one.
bool is_listed_folder(std::filesystem::path const& path);

/// The entries of a folder, unsorted; nullopt unless there is a listing with the type of each
/// entry.
std::optional<std::vector<TreeEntry>> listed_entries(std::filesystem::path const& folder);

/// The result of `read` for a small file that several formats read to recognise a checkpoint:
/// cached while a scope of a folder above lives.
std::string text_once(std::filesystem::path const& path, std::function<std::string()> const& read);

/// The names in a folder, unsorted. If it cannot be listed, `problem` is set and the result empty.
std::vector<std::string> names_in(std::filesystem::path const& folder, std::error_code& problem);

}  // namespace reshard
