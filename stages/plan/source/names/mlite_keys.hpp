#pragma once

#include <string>
#include <vector>

#include "core/formats/stored_view.hpp"
#include "core/layout/pipeline_chunks.hpp"

namespace reshard {

/// Megatron Lite (experimental/lite of Megatron-LM) saves plain DCP checkpoints with names of its
/// own (docs/formats/dcp.md, section 7).

/// `model.layers.3.…` -> `layers.3.…`; `model_pp1.layers.0.…` -> `layers.N.…`, where N counts the
/// layers of the stages before. Keys of other forms stay. A stage or a layer that is missing among
/// others, keys with a stage beside keys without one, are Errors of kind source.
StoredView::Table without_stages(StoredView::Table const& keys, std::string const& place);

/// The key of a name of the map in a target: "layers.5.…" -> "model.layers.5.…", or with several
/// pipeline stages "model_pp1.layers.1.…". Multi-token prediction goes with the head.
std::string mlite_key(std::string const& name, std::vector<PipelineChunk> const& chunks);

}  // namespace reshard
