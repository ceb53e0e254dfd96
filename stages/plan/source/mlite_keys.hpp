#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/format.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// Megatron Lite (experimental/lite of Megatron-LM) saves plain DCP checkpoints with names of its
/// own (docs/formats/dcp.md, section 7).

/// Whether a map has Megatron Lite's names: it lists the options of mlite_options().
bool has_mlite_names(MapFile const& map);

/// `model.layers.3.…` -> `layers.3.…`; `model_pp1.layers.0.…` -> `layers.N.…`, where N counts the
/// layers of the stages before. Keys of other forms stay. A stage or a layer that is missing among
/// others, keys with a stage beside keys without one, are Errors of kind source.
StoredView::Table without_stages(StoredView::Table const& keys, std::string const& place);

/// A source with Megatron Lite's names; borrows.
struct MliteSource {
  StoredTable const& stored;
  StoredView::Table const& names;  ///< from without_stages()
  std::string place;               ///< for messages
  Index etp = 1;                   ///< source.etp
};

/// The values of the options that such a map has: rank_experts, the experts of an expert-parallel
/// rank, rank_inter, the rows that an expert-tensor-parallel rank has of an expert's gate, and
/// vocab_padding, the rows after the vocabulary. Layers or experts that the model does not have so
/// many of are Errors of kind source, a source.etp that does not fit is one of kind usage.
std::map<std::string, Json> mlite_options(MliteSource const& source, Model const& model,
                                          std::vector<std::string>& warnings);

/// An Error of kind source when stored tensors are shards of what `side` expects: the rest was
/// never saved.
void check_whole(MliteSource const& source, Side const& side);

}  // namespace reshard
