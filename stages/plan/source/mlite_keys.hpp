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

/// The key of a name of the map in a target: "layers.5.…" -> "model.layers.5.…", or with several
/// pipeline stages "model_pp1.layers.1.…". Multi-token prediction goes with the head.
std::string mlite_key(std::string const& name, std::vector<PipelineChunk> const& chunks);

/// An Error of kind source when stored tensors are shards of what `side` expects: the rest was
/// never saved.
void check_whole(MliteSource const& source, Side const& side);

}  // namespace reshard
