#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/containers/torch/pickle/pickle.hpp"
#include "core/formats/fsdp_ranks/held_tensor.hpp"

namespace reshard::fsdp_ranks {

/// The size limit of a tensor of ranks, far above any real one.
inline constexpr std::uint64_t most_mesh_bytes = std::uint64_t{16} << 20;

/// A mesh, and the place of a rank on it.
struct RankMesh {
  MeshForm form;
  std::vector<Index> place;
};

/// A pickled torch.distributed.device_mesh.DeviceMesh: until torch 2.8 with `mesh`, a tensor of
/// ranks; from 2.9 on with `_rank_map` and `_layout`, whose axes are sizes and strides in that map
/// (torch 2.13, device_mesh.py and _mesh_layout.py). `integers` reads a tensor of the document.
/// `where`: the beginning of messages. Errors of kind source: damage; a rank that is not on the
/// mesh, or whose place or number contradicts it.
RankMesh read_rank_mesh(pickle::Document const& document, pickle::NodeId mesh, Index rank,
                        std::string const& where,
                        std::function<std::vector<Index>(std::uint32_t tensor)> const& integers);

/// An attribute of a pickled object: in its state, which is a dict, or a tuple of dicts if its
/// class has slots; of such a state itself; or of a dict. no_node if there is none.
pickle::NodeId attribute(pickle::Document const& document, pickle::NodeId object,
                         std::string_view key);

/// The integers of a tuple, a list or a torch.Size; nullopt for another value.
std::optional<std::vector<Index>> integers_in(pickle::Document const& document, pickle::NodeId id);

}  // namespace reshard::fsdp_ranks
