#pragma once

#include <filesystem>
#include <string>

namespace reshard {

struct Timeline {
  std::string json;       ///< the document behind the page
  bool complete = false;  ///< else the file is cut short: the page shows what is there
};

/// From a file that `run --trace` wrote. Errors of kind source: not such a file, damage before its
/// last line; usage: more spans than a page can show.
Timeline read_timeline(std::filesystem::path const& trace, std::string const& made_by,
                       std::size_t most_spans = 4'000'000);

}  // namespace reshard
