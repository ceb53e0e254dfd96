#pragma once

#include <cstdint>
#include <string>

#include "core/formats/headers/chunk_grid.hpp"
#include "core/formats/targets/format_option.hpp"

namespace reshard::dcp {

/// The keys of a plain DCP target.
struct TargetOptions {
  ChunkGrid::Kind chunks = ChunkGrid::Kind::source;
  Index ranks = 1;         ///< with chunks = ranks
  std::string mesh;        ///< "dp=4 tp=2", with chunks = mesh
  std::string placements;  ///< "*.experts.*: S0 S0; *: S0 R", with chunks = mesh
  std::string prefix;      ///< put before every key
  std::string map;         ///< the map with the tensors' new names; "": those of the source
  friend bool operator==(TargetOptions const&, TargetOptions const&) = default;
};

FormatOptions<TargetOptions> target_options();

/// The grid of these options. Errors of kind usage: a malformed mesh or placements.
ChunkGrid grid_of(TargetOptions const& options);

/// One key for all layers with the layer axis in front, or keys of their own; automatic keeps the
/// source's form.
enum class LayerKeys { automatic, stacked, separate };

/// Whether a target gets an integrity.json; automatic: if the source has one.
enum class IntegrityChoice { automatic, always, never };

/// The keys of a target of Megatron-Core's distributed checkpointing.
struct DistOptions {
  LayerKeys layers = LayerKeys::automatic;
  IntegrityChoice integrity = IntegrityChoice::automatic;
  std::uint64_t chunk_bytes = 256ULL << 20U;  ///< the largest chunk, aimed at
  friend bool operator==(DistOptions const&, DistOptions const&) = default;
};

FormatOptions<DistOptions> dist_options();

}  // namespace reshard::dcp
