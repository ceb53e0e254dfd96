#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/megatron/headers/shard_name.hpp"
#include "core/layout/mesh.hpp"

namespace reshard::megatron {

// Megatron's parallel axes as a mesh of named axes: "tp", "pp", "vpp" (model chunks per pipeline
// rank), "ep" and "etp", in this order, then further axes of a map.

/// All axes of these sizes; etp is stated.
Mesh mesh_of(MeshSizes const& sizes);
/// The mesh of sizes by name, as in a job file: missing ones are 1, and etp 0 or no etp means tp.
/// Other names become further axes, in alphabetical order.
Mesh mesh_of(std::map<std::string, int, std::less<>> const& sizes);

/// The axes that are not Megatron's own.
std::vector<MeshAxis> further_axes(Mesh const& mesh);

/// The sizes of Megatron's own axes. Further axes have no place in its args.
MeshSizes sizes_of(Mesh const& mesh);
/// sizes_of() for mp_rank_* folders: a further axis above 1, for which their names have no number,
/// is an Error of kind usage.
MeshSizes shard_sizes(Mesh const& mesh);

/// The place of a shard. `etp` must divide `tp`: the expert tensor rank is tp mod etp.
MeshPlace place_of(Mesh const& mesh, ShardPlace const& shard);

/// The places of one pipeline rank that some rank of the mesh has, in order of the further axes,
/// tp, ep, etp. Dense tensors (tp) and experts (ep, etp) are folded over the same ranks; every
/// further axis is independent of both.
std::vector<MeshPlace> stage_places(Mesh const& mesh);

/// The shards that ranks of these sizes write, in order of pp, tp, ep, each once.
std::vector<ShardPlace> shard_places(MeshSizes const& sizes);

/// The axes that shard names number: tp, pp, ep; and the coordinates of a shard along them.
Mesh shard_mesh(MeshSizes const& sizes);
MeshPlace shard_coordinates(ShardPlace const& shard);

/// "tp 2 · pp 1 · ep 4 · vpp 2 · etp 1": vpp and etp only if they are not the default.
std::string layout_text(MeshSizes const& sizes);

}  // namespace reshard::megatron
