#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"

namespace reshard {

/// The state of a checkpoint's files at one moment, from their names, sizes and times alone: with
/// equal digests nothing was changed.
struct SourceStamp {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
  std::int64_t newest_ns =
      0;               ///< the youngest time of change, nanoseconds since 1970; of folders, too
  std::string digest;  ///< XXH3-128 over paths, sizes and times of the files
};

/// Of a folder with all that lies in it (hidden files but .metadata left out), or of one file. What
/// vanishes meanwhile is left out. Links are followed to files, not to folders. A folder that
/// cannot be listed is an Error of kind source.
/// `known`: files that were looked at already, as they were then.
SourceStamp source_stamp(std::filesystem::path const& path,
                         std::map<std::filesystem::path, FileStamp> const& known = {});

/// The clock that times of change are compared with: nanoseconds since 1970.
std::int64_t now_ns();

/// As it is in a manifest, under "stamp" of its source; and back, nothing when it is no stamp.
Json stamp_json(SourceStamp const& stamp);
std::optional<SourceStamp> parse_stamp(Json const& json);

}  // namespace reshard
