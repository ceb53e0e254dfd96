#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reshard {

/// Stored tensors of a source that are not part of the job: those under `drop` of the map, such as
/// buffers that loaders compute, and with model.unmapped = "drop" the unmapped parts.
struct LeftOut {
  static constexpr std::size_t most_names = 8;

  std::uint64_t tensors = 0;  ///< over all files: a tensor of every rank's file counts once for
                              ///< each
  std::uint64_t bytes = 0;
  std::vector<std::string> names = {};  ///< the first ones in the order of the files, each once
};

}  // namespace reshard
