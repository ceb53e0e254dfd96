#pragma once

#include <cstdint>
#include <span>

#include "core/base/range.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// A single run of at least this many bytes is read straight into the place it is written from.
inline constexpr std::uint64_t straight_bytes = 256U << 10;
/// Source bytes nearer to each other than this are read together, the gap too.
inline constexpr std::uint64_t sieve_gap_bytes = 64U << 10;

/// The work of one rank that reads and writes these regions itself: reads, copies and writes over
/// one staging block. Regions that bring the same bytes to several target files are read once and
/// written from the same place. `dims` is what the regions' first_dim counts in.
RoundWork compile_round(std::span<Region const> regions, std::span<ByteDim const> dims,
                        StagingAlignment alignment = {});

/// About the staging that compile_round takes, at the cost of a few additions per region: exact but
/// for bytes shared by several regions (less) and gaps that are read along (at most sieve_gap_bytes
/// each, more).
std::uint64_t staging_bound(std::span<Region const> regions, std::span<ByteDim const> dims,
                            StagingAlignment alignment = {});

/// Bytes [begin, end) of a file; core/base/range.hpp unites them.
struct FileSpan {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(FileSpan const&, FileSpan const&) = default;
};

/// Which end of a region.
enum class RegionEnd { source, target };

/// The byte ranges that a region touches at one end; ranges with gaps of at most `gap_bytes`
/// between them count as one.
void append_spans(Region const& region, std::span<ByteDim const> dims, RegionEnd end,
                  std::uint64_t gap_bytes, std::vector<FileSpan>& spans);

}  // namespace reshard
