#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "core/base/file.hpp"

namespace reshard {

/// The block size of the file system that a path is on, or will be, where its files can share
/// extents: Btrfs, and XFS made with reflink=1. Nothing for others, and where it cannot be told.
/// Nothing is written.
std::optional<std::uint64_t> clone_block_at(std::filesystem::path path);

/// A stretch of one file as a part of another.
struct FileClone {
  File const& from;
  std::uint64_t from_bytes = 0;
  File const& to;
  std::uint64_t to_bytes = 0;
  std::uint64_t bytes = 0;
};

enum class CloneAnswer {
  cloned,
  refused,       ///< not between these two files, or not these stretches
  never_between  ///< not on these file systems at all
};

/// Lets `to` share the extents of `from` (FICLONERANGE): afterwards it has the same bytes there.
/// Nothing was changed when it is refused. A full disk is an Error of kind resources, any other
/// failure one of kind io.
CloneAnswer clone_range(FileClone const& clone);

}  // namespace reshard
