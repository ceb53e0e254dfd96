#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/format.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// Options that a checkpoint of Megatron Lite does not state and its names and shapes show
/// (mlite_keys.hpp).

/// Whether a map has Megatron Lite's names: it lists the options of mlite_options().
bool has_mlite_names(MapFile const& map);

/// A source with Megatron Lite's names; borrows.
struct MliteSource {
  StoredTable const& stored;
  StoredView::Table const& names;  ///< from without_stages()
  std::string place;               ///< for messages
  MapFile const& map;              ///< whose names they are
  Index tp = 1;                    ///< source.tp
  Index etp = 1;                   ///< source.etp
};

/// The values of the options that such a map has: rank_experts, the experts of an expert-parallel
/// rank, rank_inter, the rows that an expert-tensor-parallel rank has of an expert's gate,
/// vocab_padding, the rows after the vocabulary, and of each axis AXIS that the map has an option
/// tp_AXIS of, the indices that a tensor-parallel rank has. Layers or experts that the model does
/// not have so many of are Errors of kind source, a source.etp that does not fit is one of kind
/// usage.
std::map<std::string, Json> mlite_options(MliteSource const& source, Model const& model,
                                          std::vector<std::string>& warnings);

/// The same options of a target, for a run on `mesh` (tp, ep, etp). Sizes that it does not divide
/// are Errors of kind usage.
std::map<std::string, Json> mlite_target_options(MapFile const& map, Model const& model,
                                                 Mesh const& mesh);

/// An Error of kind source when stored tensors are shards of what `side` expects: the rest was
/// never saved.
void check_whole(MliteSource const& source, Side const& side);

}  // namespace reshard
