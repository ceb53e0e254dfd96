#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/ids.hpp"
#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/cells/cell_table.hpp"
#include "core/plan/cells/round.hpp"
#include "core/plan/equal/state_checks.hpp"
#include "core/plan/file_places.hpp"

namespace reshard {

/// A strided block of bytes of a source file and its destination: runs of run_bytes, once per index
/// tuple of its dims.
template <class Target>
struct StridedBlock {
  std::uint32_t src_file = 0;
  Target to{};
  std::uint64_t src_offset_bytes = 0;
  std::uint64_t dst_offset_bytes = 0;
  std::uint64_t run_bytes = 0;
  std::uint32_t first_dim = 0;  ///< in Plan::dims
  std::uint32_t dim_count = 0;
};

/// A block that goes to a target file, by its number.
using Region = StridedBlock<std::uint32_t>;
/// A block that goes to the row-major bytes of a tensor or object with a digest.
using DigestRegion = StridedBlock<DigestId>;

/// The size of a block in bytes; `dims` are its own.
template <class Target>
std::uint64_t bytes_of(StridedBlock<Target> const& block, std::span<ByteDim const> dims) {
  std::uint64_t bytes = block.run_bytes;
  for (ByteDim const& dim : dims) bytes *= dim.count;
  return bytes;
}

/// The copies of a job: regions grouped by cell, cells in target order. The same for any number of
/// ranks. Regions are made on request: a job with tens of thousands of files has millions of them,
/// of a few hundred shapes.
struct Plan {
  CellTable cells;
  /// Regions whose files are numbers of places, counted from those of a cell, and whose offsets are
  /// counted from these places.
  std::vector<Region> shape_regions;
  /// Blocks that go to digests: number 0 is the digest of the cell, with offsets from
  /// Cell::digest_bytes; DigestId::none stays none. Source files as in shape_regions.
  std::vector<DigestRegion> shape_digests;
  FilePlaces places;
  std::vector<ByteDim> dims;
  std::vector<std::uint64_t> tensor_bytes;  ///< by DigestId; 0 for tensors that do not exist
  std::vector<StateCheck> checks;           ///< of optimizer state, with PlanLimits::digests
  std::uint64_t source_bytes = 0;           ///< distinct bytes read
  std::uint64_t target_bytes = 0;           ///< payload bytes written, copies included
  std::uint64_t replicas_dropped = 0;  ///< source pieces that are not read because another has the
                                       ///< same elements
  std::uint64_t logical_tensors = 0;
  std::uint64_t joined_regions =
      0;  ///< overlaps of source and target pieces, before they are cut into cells
  StagingAlignment alignment;  ///< of its rounds
  CloneRules clones;           ///< of rounds in which a rank reads and writes itself
  std::vector<bool> unread;    ///< tensors whose bytes are cloned and not read, by DigestId; empty:
                               ///< none (leave_unread())

  /// The regions of a cell, and their number.
  std::vector<Region> regions_of(Cell const& cell) const;
  std::size_t region_count(Cell const& cell) const { return cells.shape(cell.shape).region_count; }
  /// The source bytes of a cell, each once, with their place in the logical tensor
  /// (logical_pieces()). Empty without PlanLimits::digests.
  std::vector<DigestRegion> digests_of(Cell const& cell) const;
  /// The first region of a cell.
  Region first_region_of(Cell const& cell) const;
  /// The digest of a cell's bytes; none in a plan without digests.
  DigestId digest_of(Cell const& cell) const;
  /// Adds a cell with a shape of its own, of which `sizes` has the staging, source and target
  /// bytes. The dimensions of its regions are in `dims`. Pre: all of `digests` that are not
  /// DigestId::none have the same target.
  void add(CellShape sizes, std::span<Region const> regions,
           std::span<DigestRegion const> digests = {});

  template <class Target>
  std::span<ByteDim const> dims_of(StridedBlock<Target> const& region) const {
    return {dims.data() + region.first_dim, region.dim_count};
  }
};

/// Bounds of a plan's cells.
struct PlanLimits {
  std::uint64_t cell_bytes = 16U << 20;     ///< source bytes of a cell, aimed at
  std::uint64_t staging_bytes = 64U << 20;  ///< the most staging memory of a cell
  bool digests = true;                      ///< whether the plan contains digests of the source
  StagingAlignment alignment = {};
  std::size_t threads = 1;      ///< that plan; the plan does not depend on it
  std::uint64_t cut_bytes = 1;  ///< cells are cut at multiples of it, counted from the first
                                ///< element of a stored tensor, where rows allow it
  /// The limit of cell_bytes in a job that would have more cells than usual.
  std::uint64_t most_cell_bytes = 0;
  std::uint64_t usual_cells = 1U << 16;
  /// A cell that would write more than this is several, for some replicas of the target each: one
  /// cell would be too large a part of a rank's work.
  std::uint64_t most_target_bytes = 256U << 20;
};

/// Bytes that are copied unchanged, outside of all logical tensors (opaque module state).
struct OpaqueCopy {
  std::uint32_t src_file = 0;
  std::uint32_t dst_file = 0;
  std::uint64_t src_offset_bytes = 0;
  std::uint64_t dst_offset_bytes = 0;
  std::uint64_t bytes = 0;
};

/// Joins source and target on the logical tensors that exist. Proves that the source contains every
/// element exactly once (not counting replicas) and that both sides agree on dtypes. Errors: source
/// (missing or duplicate elements, dtypes), resources (a row too large for the limits).
Plan make_plan(Model const& model, Catalog const& source, Catalog const& target,
               PlanLimits const& limits, std::span<OpaqueCopy const> opaque = {});

}  // namespace reshard
