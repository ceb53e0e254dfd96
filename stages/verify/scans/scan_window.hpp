#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/range.hpp"
#include "core/io/direct_io.hpp"
#include "core/plan/compile.hpp"
#include "stages/verify/scans/scan_blocks.hpp"

namespace reshard {

/// Windows begin and end at multiples of this, except at the end of the file, as DirectIo requires.
inline constexpr std::uint64_t scan_page_bytes = direct_block_bytes;

/// A part of a file that is in memory at one time.
struct ScanWindow {
  std::uint64_t begin = 0;
  std::uint64_t fresh =
      0;  ///< bytes before this one are also in the previous window, those from it on are read
  std::uint64_t end = 0;
  std::vector<ScanBlock> blocks;  ///< that end here
};

/// The part of a file that is read.
enum class ScanExtent {
  wanted,  ///< the bytes of blocks, and small gaps, because one request is faster than two
  whole,   ///< all bytes; an empty file has one empty window
};

/// The windows of one file, in ascending order. Every byte is fresh in one of them at most.
class ScanWindows {
 public:
  /// `skipped`, of this file, is left out of ScanExtent::whole, except for bytes of blocks and the
  /// first and last page. `blocks` outlive the windows. Pre: none of them spans more than
  /// window_bytes - scan_page_bytes, or ends after the file; window_bytes is a multiple of
  /// scan_page_bytes.
  ScanWindows(FileBlocks const& blocks, std::uint64_t file_bytes, std::uint64_t window_bytes,
              ScanExtent extent, std::span<FileSpan const> skipped = {})
      : blocks_(blocks.blocks),
        file_bytes_(file_bytes),
        window_bytes_(window_bytes),
        extent_(extent) {
    leave_out(skipped);
  }

  std::optional<ScanWindow> next();

 private:
  void leave_out(std::span<FileSpan const> skipped);
  std::optional<std::uint64_t> next_begin();
  std::uint64_t wanted_end(std::uint64_t begin, std::uint64_t most) const;

  std::vector<ScanBlock> const& blocks_;
  std::uint64_t file_bytes_;
  std::uint64_t window_bytes_;
  ScanExtent extent_;
  std::vector<ByteRange> skipped_;  // complete pages, in order
  std::size_t passed_ = 0;          // of them
  std::size_t seen_ = 0;            // blocks that began in a window
  std::vector<ScanBlock> waiting_;  // those of them that did not end there
  std::uint64_t done_ = 0;          // the end of the last window
  bool any_ = false;                // window came
};

}  // namespace reshard
