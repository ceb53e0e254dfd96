#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/plan/compile.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// Bytes of a source file whose CRC-32 is known.
struct SummedBytes {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

/// The inputs of leave_unread().
struct UnreadTerms {
  std::vector<bool> recorded;      ///< tensors with known digests, by DigestId
  std::vector<SummedBytes> known;  ///< of the source
  std::vector<FileSpan> wanted;    ///< bytes of target files whose CRC-32 is wanted
};

/// The unread bytes.
struct UnreadBytes {
  std::vector<FileSpan> spans;  ///< of target files, sorted
  std::vector<std::optional<std::uint32_t>>
      crc32;  ///< of those UnreadTerms::wanted that consist of unread bytes only
};

/// Chooses the tensors that are cloned without being read (Plan::unread): all of their target bytes
/// can be cloned, their digest is recorded, no check of optimizer state reads them, and the CRC-32
/// that target files want of them follows from sums of the source: the wanted bytes consist of
/// complete ranges with a known sum. Their cells take no staging memory from then on. Pre:
/// plan.clones is set; the plan is complete and has digests.
UnreadBytes leave_unread(Plan& plan, UnreadTerms const& terms);

/// Whether the cell has bytes of a tensor of Plan::unread.
bool is_unread(Plan const& plan, Cell const& cell);

}  // namespace reshard
