#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/mapping/side.hpp"
#include "core/plan/catalog.hpp"
#include "stages/plan/source/source_side.hpp"

namespace reshard {

/// The keys of a DCP checkpoint, sorted by what they hold. Borrows the checkpoint.
struct DistView {
  /// Stored names and their places in metadata.tensors.
  using Table = std::unordered_map<std::string, std::size_t>;

  Table weights;  ///< without their prefix
  std::vector<std::string>
      states;  ///< kinds of optimizer state that follow their weights: "param", "exp_avg", …
  std::vector<Table> state_tables;       ///< parallel to `states`; keys are those of the weights
  std::vector<std::string> fixed_state;  ///< keys of optimizer state that is bound to the layout it
                                         ///< was saved in (dp_reshardable and older)
  std::vector<std::string>
      unread;             ///< weights whose keys do not begin with the prefix that was asked for
  MegatronTraits traits;  ///< Megatron's names; not meaningful for others
  bool stacked = false;   ///< layers are an axis in front
  bool halves = false;    ///< gate and up have keys of their own
};

/// `prefix` "": found by looking (model.module., module., …) for Megatron's names, none for others.
DistView look_at(DcpCheckpoint const& checkpoint, std::string const& prefix);

/// The prefix of optimizer state in torch_dist: "optimizer.state.exp_avg." for "exp_avg".
std::string state_prefix(std::string_view state);

/// Marks those of `may_lack` that the source lacks as not existing and states that it has as
/// existing, then gives every piece of every stored tensor. `states` of the view are taken when the
/// model has them (Model::add_states). Errors of kind source as for the other catalogues.
Catalog dist_catalog(Model& model, Side const& side, DcpCheckpoint const& checkpoint,
                     DistView const& view, std::vector<std::string> const& files,
                     std::vector<int> const& may_lack, std::string const& map_names);

}  // namespace reshard
