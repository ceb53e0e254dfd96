#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/publication/begin_target.hpp"
#include "pipeline/publication/target_task.hpp"

namespace reshard {

/// Bytes that a target has taken over from the previous one; the same on every rank.
struct ReusedBytes {
  std::vector<bool> files;        ///< by number: those that are the previous one's, byte for byte
  std::vector<FileSpan> blocks;   ///< of others, by place: complete blocks that are clones
  std::uint64_t whole_files = 0;  ///< so many
  std::uint64_t whole_bytes = 0;
  std::uint64_t kept_bytes = 0;    ///< of tensors, not written while bytes streamed
  std::uint64_t copied_bytes = 0;  ///< of those, copied in the end for want of clones and links
};

/// Opens a file of the previous target. An Error of kind io when it has changed since the job was
/// planned.
File open_previous(PreviousFile const& previous);

/// Takes over what was not written. A file whose CRC-64 is that of the previous one, of the same
/// size, becomes that file: a clone of it or a hard link. In others `kept` is filled in. Pre: all
/// else is written, and `begun.sums` are complete. `kept` are those of this rank. An Error of kind
/// io when the previous target has changed. Collective.
ReusedBytes reuse_files(TargetTask const& task, BegunTarget const& begun,
                        std::vector<FileSpan> const& kept);

}  // namespace reshard
