#pragma once

#include "core/containers/torch/pickle/pickle.hpp"
#include "core/layout/pieces/placement.hpp"
#include "tests/support/sample_checkpoints.hpp"

namespace reshard::test {

/// A torch file in the making: its payloads in the order of the document's tensors.
struct RankFileDraft {
  pickle::Document document;
  std::vector<std::vector<std::byte>> payloads;
  /// The dicts behind what was added last, for those who change them.
  struct States {
    pickle::NodeId mesh = pickle::no_node;
    pickle::NodeId layout = pickle::no_node;
    pickle::NodeId axis = pickle::no_node;
    pickle::NodeId spec = pickle::no_node;
    pickle::NodeId slots = pickle::no_node;      ///< of the DTensor
    pickle::NodeId arguments = pickle::no_node;  ///< a tuple: class, dtype, size, strides
    pickle::NodeId placement = pickle::no_node;
  } states;

  pickle::NodeId add(DType dtype, std::vector<Index> shape, std::vector<std::byte> bytes);
  /// A DeviceMesh as torch 2.13 pickles it, of ranks 0, 1, … in row-major order.
  pickle::NodeId add_mesh(std::vector<Index> const& sizes, Index rank);
  /// The same as torch until 2.8 does.
  pickle::NodeId add_old_mesh(std::vector<Index> const& sizes);
  pickle::NodeId add_placement(Placement const& placement);
  /// A DTensor of which the local tensor is a node.
  pickle::NodeId add_dtensor(pickle::NodeId local, std::vector<Index> const& shape,
                             pickle::NodeId mesh, std::vector<Placement> const& placements);
  /// Its archive is named after the path, or `archive`.
  void write(std::filesystem::path const& path, std::string archive = "");
};

/// model_world_size_2_rank_R.pt of two ranks; with state optim_… and extra_state_…, too.
SampleCheckpoint make_fsdp_ranks(std::filesystem::path const& folder);
SampleCheckpoint make_fsdp_ranks_with_state(std::filesystem::path const& folder);

}  // namespace reshard::test
