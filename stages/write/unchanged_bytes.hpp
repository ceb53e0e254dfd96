#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/base/file.hpp"
#include "core/base/workers.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/round.hpp"

namespace reshard {

/// The file of a previous target that has the name and the size of a file of this one.
struct PreviousFile {
  std::filesystem::path path;         ///< "": there is none, or nothing is known of it
  FileStamp stamp;                    ///< as it was when the job was planned, without a device
  std::vector<std::uint64_t> blocks;  ///< CRC-64, the last block shorter
};

/// Whether a file is still the one that a stamp was taken of. The time of its last change of any
/// kind does not count: a hard link to it, made or removed, changes that.
bool is_same_file(FileStamp const& one, FileStamp const& other);

/// A complete block of a target file that the previous one has, too.
struct UnchangedBlock {
  FileSpan span;
  std::uint64_t crc64 = 0;
};

/// What a round brings, next to a previous target.
struct ComparedRound {
  std::vector<Extent> to_write;
  std::vector<UnchangedBlock> blocks;  ///< by place
};

/// Finds the blocks that a previous target has at the same places, so that they need not be
/// written. Used by one thread.
class UnchangedBytes {
 public:
  /// By number of the target file. `block_bytes`: of PreviousFile::blocks. The files outlive it.
  UnchangedBytes(std::span<PreviousFile const> files, std::uint64_t block_bytes,
                 std::size_t threads)
      : files_(files), block_bytes_(block_bytes), workers_(threads) {}

  /// Which parts of these extents are to be written: all but complete blocks whose CRC-64 is the
  /// recorded one. Of a block that two rounds bring, each writes its part. Pre: sorted by place,
  /// apart.
  ComparedRound compare(std::span<Extent const> sorted, std::byte const* staging);

  /// What compare() has left out since this was last asked, by place.
  std::vector<FileSpan> take_kept();

 private:
  /// A complete block that one round brings, without a gap.
  struct Candidate {
    FileSpan span;
    std::size_t first_extent = 0;
    std::uint64_t crc64 = 0;
  };
  std::vector<Candidate> candidates_in(std::span<Extent const> sorted) const;

  std::span<PreviousFile const> files_;
  std::uint64_t block_bytes_;
  Workers workers_;
  std::vector<FileSpan> kept_;
};

}  // namespace reshard
