#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "pipeline/view/view_assets.hpp"

namespace reshard {

/// How the data lies in a page.
enum class PageData {
  automatic,  ///< compressed when it is long
  plain,      ///< JSON, for browsers that cannot decompress (older than 2023)
};

/// One self-contained page: the assets and `json` in it, nothing else is loaded. Names from
/// files may hold anything: they reach the browser as JSON whose markup characters are escaped, and
/// the title as escaped HTML; a content security policy lets no other script run.
std::string page_html(PageAssets const& assets, std::string_view title, std::string_view json,
                      PageData data = PageData::automatic);

/// A place for a page, checked before any work: its folder is there, and its name is free or an
/// earlier page's. Errors of kind usage, also for a path inside one of `taken` or inside any other
/// checkpoint, which are not written into.
class PageFile {
 public:
  explicit PageFile(std::filesystem::path path, std::span<std::filesystem::path const> taken = {});

  /// Writes a file beside it, syncs that and renames it: at any moment the old page or the new one
  /// is there. Errors of kind io, resources.
  void write(std::string_view html) const;

 private:
  std::filesystem::path path_;
};

}  // namespace reshard
