#pragma once

#include <string_view>

namespace reshard {

/// The files of pipeline/view/page that make a page, as cmake/embed_texts.cmake put them into the
/// program.
struct PageAssets {
  std::string_view style;
  std::string_view body;
  std::string_view script;
};
PageAssets layout_assets();
PageAssets difference_assets();

}  // namespace reshard
