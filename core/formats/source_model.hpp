#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/formats/huggingface/config.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/left_out.hpp"
#include "core/formats/stored_view.hpp"
#include "core/mapping/map_choice.hpp"
#include "core/mapping/model.hpp"
#include "core/mapping/side.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/padding_rows.hpp"

namespace reshard {

/// The stored names of a target whose format has none of its own (target.map).
struct TargetNames {
  MapFile map;
  std::map<std::string, Json> options = {};  ///< of the map's [options]
  /// What a name of the map is in the target; absent: the same.
  std::function<std::string(std::string const&)> key = {};
  /// Values beside the tensors: keys, and what torch.save makes of the values.
  std::vector<std::pair<std::string, std::string>> objects = {};
};

/// A source seen through a map: its model, the facts it was made from, and every piece that it
/// holds.
struct SourceModel {
  Json args;                ///< of a Megatron source; null for others
  Json config;              ///< config.json of the source or the reference; null when there is none
  std::string config_text;  ///< config.json made from args
  std::optional<huggingface::Folder>
      reference;  ///< whose files lie beside the weights of a Hugging Face or HDF5 target
  std::optional<huggingface::Folder> files;  ///< config.json of the source and what lies beside it
  std::vector<huggingface::ConfigPatch>
      config_changes;  ///< of the target's config.json: layers for multi-token prediction
  StoredView view;     ///< the stored tensors, without source.prefix
  NameTraits traits;
  MapChoice maps;
  std::optional<TargetNames> target_names;
  std::unique_ptr<Model> model;
  std::optional<Model> unquantised;  ///< the model as it was before parts of quantised weights
                                     ///< became tensors of it; nothing where none did
  std::unique_ptr<Side> family_side;
  std::vector<PipelineChunk> chunks;  ///< of a source whose storage is shares
  Catalog catalog;
  LeftOut left_out;
  std::vector<PaddingRows> padding;  ///< what the source has behind the model's vocabulary
  std::optional<DType> computing;    ///< of weights whose places masters took
  std::string adapter;               ///< how the adapters of the source are named (SideOptions)
  bool adapters_apart = false;       ///< likewise
  std::vector<std::string> packed_parameters;  ///< adapter_config.json's target_parameters
  std::optional<Catalog> weights;  ///< as it was before master weights took the place of weights
  std::vector<int> adds;  ///< what stored values of the source have over logical ones (Side::adds)
  std::vector<std::optional<DType>> casts;  ///< dtypes that the map states (Side::casts)
  Json merged_adapter;  ///< what was merged into the weights, for records; null for nothing
  std::optional<Index> recorded_vocab;  ///< vocabulary rows that mean something, where args say so
  std::vector<std::string> warnings;
  TrainerNames target_trainer;  ///< of a target with Megatron's names
  bool incomplete = false;  ///< tensors of the family are not there, because their program does not
                            ///< save them
  std::string parts;        ///< what becomes of the parts beside the language model, as a sentence
                            ///< without its dot; "" where there are none

  /// The model with every weight as it is, however it is quantised.
  Model as_it_is() const;
  /// Whether names and args are Megatron's.
  bool is_megatron() const { return !args.is_null(); }
};

}  // namespace reshard
