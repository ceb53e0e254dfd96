#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "core/io/file_set.hpp"
#include "core/plan/round.hpp"

namespace reshard {

/// Clones stretches of source files into target files. Files that refused once are not asked again.
/// Used by one thread.
class ExtentCloner {
 public:
  /// Both outlive the cloner.
  ExtentCloner(FileSet& sources, FileSet& targets) : sources_(sources), targets_(targets) {}

  /// False: it was refused, and the bytes must be copied.
  bool clone(CloneExtent const& extent);
  /// Copies the bytes through memory.
  void copy(CloneExtent const& extent);

 private:
  FileSet& sources_;
  FileSet& targets_;
  std::vector<std::byte> buffer_;
  bool never_ = false;
  std::set<std::pair<std::uint32_t, std::uint32_t>> refused_;  ///< source file, target file
};

}  // namespace reshard
