#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/threads/workers.hpp"
#include "core/plan/cells/round.hpp"
#include "core/plan/compile.hpp"

namespace reshard {

/// The file of a previous target that has the name and the size of a file of this one.
struct PreviousFile {
  std::filesystem::path path;         ///< "": there is none, or its blocks are not known
  FileStamp stamp;                    ///< at the planning of the job, without a device
  std::vector<std::uint64_t> blocks;  ///< CRC-64, the last block shorter
};

/// Whether two stamps are of the same file content. ctime is not compared, as making or removing a
/// hard link changes it.
bool is_same_file(FileStamp const& one, FileStamp const& other);

/// A complete block of a target file that is unchanged from the previous one.
struct UnchangedBlock {
  FileSpan span;
  std::uint64_t crc64 = 0;
};

/// The comparison of a round with a previous target.
struct ComparedRound {
  std::vector<Extent> to_write;
  std::vector<UnchangedBlock> blocks;  ///< by file and offset
};

/// Finds the blocks that a previous target has at the same places, so that they need not be
/// written. Used by one thread.
class UnchangedBytes {
 public:
  /// `files` by number of the target file; they must outlive this object. `block_bytes`: of
  /// PreviousFile::blocks.
  UnchangedBytes(std::span<PreviousFile const> files, std::uint64_t block_bytes,
                 std::size_t threads)
      : files_(files), block_bytes_(block_bytes), workers_(threads) {}

  /// The parts of these extents that are to be written: all but complete blocks with the recorded
  /// CRC-64. A block in two rounds is written by both. Pre: sorted by file and offset, without
  /// overlap.
  ComparedRound compare(std::span<Extent const> sorted, std::byte const* staging);

  /// The ranges that compare() has left out since the last call, by file and offset.
  std::vector<FileSpan> take_kept();

 private:
  /// A complete block in one round, without a gap.
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
