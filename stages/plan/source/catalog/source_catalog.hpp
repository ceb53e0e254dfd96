#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/formats/targets/left_out.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/padding_rows.hpp"
#include "stages/plan/source/catalog/stored_shares.hpp"

namespace reshard {

/// How a source is read through a map.
struct CatalogChoice {
  Side const& settles;      ///< states which tensors the model has only when the source does
  std::string map_names;    ///< for messages
  bool dequantise = false;  ///< quantised weights (Model::schemes) are BF16 values, computed while
                            ///< they are read
  bool partial = false;     ///< what the source lacks is left out
  std::string prefix = {};  ///< source.prefix, for messages
  std::string method = {};  ///< by which config.json states that weights are quantised
                            ///< (quantised_by()), for messages
};

/// The pieces of a source, and what of it the map drops.
struct SourceCatalog {
  Catalog catalog;
  LeftOut left_out;
  std::vector<PaddingRows> padding;  ///< of weights; of replicas one
};

/// Marks tensors that the source lacks and may lack as not existing (settle_optional), and states
/// that it has as existing, then gives every piece of every stored tensor of the source. States of
/// the view are taken when the model has slots for them, in the view's order. Errors of kind
/// source: a stored tensor that no entry explains, a required one that is missing, a shape that
/// differs from the map's.
SourceCatalog source_catalog(Model& model, Side const& side, Checkpoint const& source,
                             StoredView const& view, std::span<PipelineChunk const> chunks,
                             CatalogChoice const& choice);

}  // namespace reshard
