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

/// What a plan needs to know before it leaves bytes unread.
struct UnreadTerms {
  std::vector<bool> recorded;      ///< tensors whose digests are known, by DigestId
  std::vector<SummedBytes> known;  ///< of the source
  std::vector<FileSpan> wanted;    ///< bytes of target files whose CRC-32 is wanted
};

/// What is not read.
struct UnreadBytes {
  std::vector<FileSpan> spans;  ///< of target files, sorted
  std::vector<std::optional<std::uint32_t>>
      crc32;  ///< of UnreadTerms::wanted, of those that hold nothing else
};

/// Chooses the tensors that are cloned without a look at their bytes (Plan::unread): every byte
/// that the plan brings of them to the target can be cloned, their digest is recorded, no check of
/// optimizer state reads them, and the CRC-32 that target files want of them follows from sums of
/// the source: what is wanted is made of bytes whose sum is known, whole ones. Their cells take no
/// staging memory from then on. Pre: plan.clones is set; the plan is whole and has digests.
UnreadBytes leave_unread(Plan& plan, UnreadTerms const& terms);

/// Whether the cell brings bytes of a tensor of Plan::unread.
bool is_unread(Plan const& plan, Cell const& cell);

}  // namespace reshard
