#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/stored_view.hpp"
#include "core/formats/targets/left_out.hpp"
#include "core/mapping/maps/map_choice.hpp"
#include "core/mapping/model.hpp"
#include "core/mapping/sides/side.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/padding_rows.hpp"

namespace reshard {

/// The stored names of a target whose format has none of its own (target.map).
struct TargetNames {
  MapFile map;
  std::map<std::string, Json> options = {};  ///< of the map's [options]
  /// The target's key for a name of the map; empty: the same.
  std::function<std::string(std::string const&)> key = {};
  /// Values in addition to the tensors: keys, and values as bytes of torch.save.
  std::vector<std::pair<std::string, std::string>> objects = {};
};

/// Members of a config.json and of args, other ones for a model that PlanRequest::changes have
/// changed.
struct StatedChanges {
  std::vector<huggingface::ConfigPatch> config;
  std::vector<huggingface::ConfigPatch> args;
  std::vector<Index> layers;  ///< the source's number of each; empty: the same
};

/// Facts about a source, as its headers, args and configs state them.
struct StatedFacts {
  Json args;                ///< of a Megatron source; null for others
  Json config;              ///< config.json of the source or the reference; null if there is none
  std::string config_text;  ///< config.json made from args
  std::optional<huggingface::Folder> reference;  ///< model files for a Hugging Face or HDF5 target
  std::optional<huggingface::Folder> files;  ///< config.json of the source and the files next to it
  std::vector<huggingface::ConfigPatch>
      config_changes;  ///< of the target's config.json: layers for multi-token prediction
  StoredView view;     ///< the stored tensors, without source.prefix
  NameTraits traits;
  std::vector<std::string> packed_parameters;  ///< adapter_config.json's target_parameters
  std::optional<Index> recorded_vocab;  ///< rows of the vocabulary without padding, if args state
                                        ///< it
};

/// The names of a source's tensors, and of the target's.
struct SourceNames {
  MapChoice maps;
  std::optional<TargetNames> target_names;
  TrainerNames target_trainer;  ///< of a target with Megatron's names
  std::unique_ptr<Side> family_side;
  std::string adapter;          ///< the form of adapter names in the source (SideOptions)
  bool adapters_apart = false;  ///< form of adapters in the source (SideOptions)
  bool incomplete = false;      ///< tensors of the family are missing, because their program does
                                ///< not save them
  std::string parts;  ///< a sentence without its dot about the parts next to the language model;
                      ///< "" if there are none
};

/// The tensors of a source and their pieces.
struct SourceTensors {
  std::vector<PipelineChunk> chunks;  ///< of a source with Storage::shares
  Catalog catalog;
  LeftOut left_out;
  std::vector<PaddingRows> padding;  ///< rows of the source after the model's vocabulary
  std::optional<DType> computing;    ///< dtype of weights replaced by their masters
  std::optional<Catalog> weights;    ///< the catalogue before masters replaced weights
  std::vector<int> adds;  ///< constants that the source adds to logical values (Side::adds())
  std::vector<std::optional<DType>> casts;  ///< dtypes stated by the map (Side::casts())
  Json merged_adapter;  ///< the adapter merged into the weights, for records; null if there is none
};

/// A source interpreted by a map: its model, the facts of the model, and all pieces.
struct SourceModel {
  StatedFacts facts;
  SourceNames names;
  std::unique_ptr<Model> model;
  std::optional<Model> unquantised;  ///< the model before parts of quantised weights became tensors
                                     ///< of it; nullopt if none did
  SourceTensors stored;
  std::vector<std::string> warnings;
  std::optional<StatedChanges> changed;  ///< nothing for the source's own model
  bool draft = false;  ///< only layers for multi-token prediction are there (limit_to_draft)

  /// The model with every weight in its stored form, quantised or not.
  Model as_it_is() const;
  /// Whether names and args are Megatron's.
  bool is_megatron() const { return !facts.args.is_null(); }
};

}  // namespace reshard
