#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reshard {

/// Stored tensors of a source that are no part of the job: what `drop` of the map lists, such as
/// buffers that loaders compute, and with model.unmapped = "drop" the parts that it leaves out.
struct LeftOut {
  static constexpr std::size_t most_names = 8;

  std::uint64_t tensors = 0;  ///< of all files: a tensor of every rank's file counts once for each
  std::uint64_t bytes = 0;
  std::vector<std::string> names = {};  ///< the first ones in the order of the files, each once
};

}  // namespace reshard
