#pragma once

#include <string>

#include "core/base/text/json.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/mapping/model.hpp"

namespace reshard::megatron {

// A layer of GPTModel has attention and an MLP or experts. In HybridModel (Megatron-Core 0.17) each
// of them is a layer of its own: layer i becomes the layers 2i and 2i + 1. The pattern has a letter
// for each: `*` attention, `+` latent attention, `D` with an indexer, `G` a gated delta net; `-` an
// MLP, `E` experts. Source: Megatron-LM, docs/user-guide/hybrid-model-migration.md and
// megatron/core/models/hybrid/hybrid_layer_allocation.py.

/// The args of a hybrid model, converted for a GPTModel of half as many layers.
struct UnpairedArgs {
  Json args;        ///< null if there are none
  std::string why;  ///< then the reason, as the end of a sentence: "has a Mamba layer ('M')"
};

/// Pre: args have a pattern of known letters. Stages between `|` become
/// pipeline_model_parallel_layout.
UnpairedArgs unpaired_args(Json const& hybrid);

/// The args that unpaired_args() changes.
ArgValues class_values(Json const& args);

/// The args that make a hybrid model of a GPTModel with `layers` decoder layers, in addition to
/// those of the layout: pattern, number of layers. A model that HybridModel cannot represent is an
/// Error of kind usage that begins with `place`. Pre: the model is not a hybrid one.
ArgValues paired_args(Model const& model, Index layers, std::string_view place);

}  // namespace reshard::megatron
