#pragma once

#include <cstdint>
#include <span>

#include "core/base/range.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// A single run of at least this many bytes is read directly into the staging memory from which it
/// is written.
inline constexpr std::uint64_t straight_bytes = 256U << 10;
/// Source ranges with a smaller gap than this are read together, the gap included.
inline constexpr std::uint64_t sieve_gap_bytes = 64U << 10;

/// The work of one rank that reads and writes these regions itself: reads, copies and writes over
/// one staging block. Regions that bring the same bytes to several target files are read once and
/// written from the same place. The regions' first_dim counts in `dims`.
RoundWork compile_round(std::span<Region const> regions, std::span<ByteDim const> dims,
                        StagingAlignment alignment = {});

/// An estimate of the staging bytes of compile_round(), at the cost of a few additions per region:
/// exact but for bytes shared by several regions (less) and gaps that are read along (at most
/// sieve_gap_bytes each, more).
std::uint64_t staging_bound(std::span<Region const> regions, std::span<ByteDim const> dims,
                            StagingAlignment alignment = {});

/// Bytes [begin, end) of a file; core/base/range.hpp unites them.
struct FileSpan {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(FileSpan const&, FileSpan const&) = default;
};

/// An end of a region.
enum class RegionEnd { source, target };

/// The byte ranges that a region touches at one end; ranges with gaps of at most `gap_bytes`
/// between them count as one.
void append_spans(Region const& region, std::span<ByteDim const> dims, RegionEnd end,
                  std::uint64_t gap_bytes, std::vector<FileSpan>& spans);

}  // namespace reshard
