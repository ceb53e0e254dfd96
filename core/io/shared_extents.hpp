#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "core/base/files/file.hpp"

namespace reshard {

/// The block size of the file system that a path is on, or will be, where its files can share
/// extents: Btrfs, and XFS made with reflink=1. nullopt for others, and if it cannot be determined.
/// Writes nothing.
std::optional<std::uint64_t> clone_block_at(std::filesystem::path path);

/// A range of one file as a range of another.
struct FileClone {
  File const& from;
  std::uint64_t from_bytes = 0;
  File const& to;
  std::uint64_t to_bytes = 0;
  std::uint64_t bytes = 0;
};

enum class CloneAnswer {
  cloned,
  refused,       ///< not between these two files, or not these ranges
  never_between  ///< not between these file systems
};

/// Lets `to` share the extents of `from` (FICLONERANGE): afterwards it has the same bytes there. A
/// refused request changes nothing. A full disk is an Error of kind resources, any other failure
/// one of kind io.
CloneAnswer clone_range(FileClone const& clone);

}  // namespace reshard
