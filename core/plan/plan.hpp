#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/ids.hpp"
#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/round.hpp"
#include "core/plan/state_checks.hpp"

namespace reshard {

/// A strided block of bytes of a source file and where it goes: runs of run_bytes, once per index
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

/// It goes to a target file, by its number.
using Region = StridedBlock<std::uint32_t>;
/// It goes to the row-major bytes of what has a digest.
using DigestRegion = StridedBlock<DigestId>;

/// The bytes of a block; `dims` are its own.
template <class Target>
std::uint64_t bytes_of(StridedBlock<Target> const& block, std::span<ByteDim const> dims) {
  std::uint64_t bytes = block.run_bytes;
  for (ByteDim const& dim : dims) bytes *= dim.count;
  return bytes;
}

/// A byte of a file. Files that were read or are written have their number, and views behind them.
struct FilePlace {
  std::uint64_t offset_bytes = 0;
  std::uint32_t file = 0;
  std::uint32_t unused = 0;  ///< makes all bytes of a place known
};

/// What equal cells have in common: the cells of each expert of each layer differ in where their
/// tensors are, and those of tensors that are alike in whose bytes they bring, too, and in nothing
/// else. Ranges of Plan::shape_regions and Plan::shape_digests.
struct CellShape {
  std::uint32_t first_region = 0;
  std::uint32_t region_count = 0;
  std::uint32_t first_digest = 0;
  std::uint32_t digest_count = 0;
};

/// The regions of one block of one logical tensor's index space: they read the same source bytes
/// and are done together, so that each source byte is read once however many targets take it. A
/// block that very many targets take is several cells, which each read it
/// (PlanLimits::most_target_bytes).
struct Cell {
  std::uint32_t shape = 0;           ///< in Plan::shapes
  std::uint32_t first_source = 0;    ///< in Plan::places: what source files of the shape count from
  std::uint32_t first_target = 0;    ///< likewise, target files
  DigestId digest = DigestId::none;  ///< what digests of the shape go to
  std::uint64_t digest_bytes = 0;    ///< what digests of the shape count from
  std::uint64_t staging_bytes = 0;   ///< an upper bound of what the cell needs in memory
  std::uint64_t source_bytes = 0;
  std::uint64_t target_bytes = 0;
};

/// What goes where: regions grouped by cell, cells in target order. The same for any number of
/// ranks. Regions are made when they are asked for: a job with tens of thousands of files has
/// millions of them, of a few hundred shapes.
struct Plan {
  std::vector<Cell> cells;
  std::vector<CellShape> shapes;
  /// Regions whose files are numbers of places, counted from those of a cell, and whose offsets are
  /// counted from these places.
  std::vector<Region> shape_regions;
  /// Likewise, to digests: number 0 is that of the cell, and the offsets there are counted from
  /// Cell::digest_bytes. DigestId::none stays what it is.
  std::vector<DigestRegion> shape_digests;
  std::vector<FilePlace> places;
  std::vector<ByteDim> dims;
  std::vector<std::uint64_t> tensor_bytes;  ///< by DigestId; 0 for tensors that do not exist
  std::vector<StateCheck> checks;           ///< of optimizer state, with PlanLimits::digests
  std::uint64_t source_bytes = 0;           ///< distinct bytes read
  std::uint64_t target_bytes = 0;           ///< payload bytes written, copies included
  std::uint64_t replicas_dropped = 0;  ///< source pieces not read because another holds the same
  std::uint64_t logical_tensors = 0;
  std::uint64_t joined_regions =
      0;  ///< overlaps of source and target pieces, before they are cut into cells
  StagingAlignment alignment;  ///< of its rounds
  CloneRules clones;           ///< of rounds in which a rank reads and writes itself
  std::vector<bool> unread;    ///< tensors whose bytes are cloned and not read, by DigestId; empty:
                               ///< none (leave_unread)

  /// What a cell brings, and how many regions that are.
  std::vector<Region> regions_of(Cell const& cell) const;
  std::size_t region_count(Cell const& cell) const { return shapes[cell.shape].region_count; }
  /// Where the source bytes of a cell, each once, are in their logical tensor (logical_pieces).
  /// Nothing without PlanLimits::digests.
  std::vector<DigestRegion> digests_of(Cell const& cell) const;
  /// The first region of a cell.
  Region first_region_of(Cell const& cell) const;
  /// What a cell brings bytes of; none in a plan without digests.
  DigestId digest_of(Cell const& cell) const;
  /// Adds a cell with a shape of its own. The dimensions of its regions are in `dims`. Pre: all of
  /// `digests` that go to one go to the same.
  void add(Cell cell, std::span<Region const> regions, std::span<DigestRegion const> digests = {});

  template <class Target>
  std::span<ByteDim const> dims_of(StridedBlock<Target> const& region) const {
    return {dims.data() + region.first_dim, region.dim_count};
  }
};

/// Bounds of a plan's cells.
struct PlanLimits {
  std::uint64_t cell_bytes = 16U << 20;     ///< source bytes of a cell, aimed at
  std::uint64_t staging_bytes = 64U << 20;  ///< what a cell may need in memory at most
  bool digests = true;  ///< whether the plan says how to take digests of the source
  StagingAlignment alignment = {};
  std::size_t threads = 1;      ///< that plan; the plan is the same
  std::uint64_t cut_bytes = 1;  ///< cells are cut at multiples of it, counted from the first
                                ///< element of a stored tensor, where rows allow it
  /// What cell_bytes may grow to in a job that would have more cells than are usual.
  std::uint64_t most_cell_bytes = 0;
  std::uint64_t usual_cells = 1U << 16;
  /// A cell that would write more than this is several, for some replicas of the target each: all
  /// of them would be too large a part of a rank's work.
  std::uint64_t most_target_bytes = 256U << 20;
};

/// Bytes that are carried as they are, outside all logical tensors (opaque module state).
struct OpaqueCopy {
  std::uint32_t src_file = 0;
  std::uint32_t dst_file = 0;
  std::uint64_t src_offset_bytes = 0;
  std::uint64_t dst_offset_bytes = 0;
  std::uint64_t bytes = 0;
};

/// Joins source and target on the logical tensors that exist. Proves that the source holds every
/// element exactly once (not counting replicas) and that both sides agree on dtypes. Errors: source
/// (missing or doubly held elements, dtypes), resources (a row too large for the limits).
Plan make_plan(Model const& model, Catalog const& source, Catalog const& target,
               PlanLimits const& limits, std::span<OpaqueCopy const> opaque = {});

}  // namespace reshard
