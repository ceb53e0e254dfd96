#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"

namespace reshard {

/// The places of the parts of a program's save. Paths are relative to the folder of the save; `*`
/// in them stands for any part of one name.
struct Shape {
  std::string_view program;  ///< as users know it: "verl"
  /// The folder of Megatron's weights; "": the save itself. With a `*` the save is also the root of
  /// an ordinary Megatron checkpoint.
  std::string_view weights;
  /// Files or folders that only this program writes: one of them exists …
  std::vector<std::string_view> signs = {};
  /// … or args have this member, which only this program has.
  std::string_view arg = {};
  /// Saves below a folder that users name for them: "global_step_*/actor", "actor".
  std::vector<std::string_view> saves = {};
  /// Folders that may have the model's config.json and tokenizer.
  std::vector<std::string_view> configs = {};
  /// A YAML or JSON file with the settings of the run; "" for none.
  std::string_view settings = {};
  /// The member of it that describes the model; "": all of it.
  std::string_view member = {};
  /// The map whose [args] makes Megatron's args from that member; "": it describes no model.
  std::string_view table = {};
  /// The member of the settings with the alpha of an adapter; "": they have none.
  std::string_view alpha = {};
  /// Folders with optimizer state and state of generators, if they are separate from the weights.
  std::string_view optimizer = {};
  std::string_view rng = {};
  /// A pattern of names of files of single ranks with weights, if they are those of FSDP; "" for a
  /// checkpoint in a format of Megatron. Such a save needs no sign.
  std::string_view files = {};
  /// Members of args or of the settings that name the initial model of the training; the first that
  /// exists counts.
  std::vector<std::string_view> origins = {};
};

/// All known shapes; of several that fit, the first counts.
std::span<Shape const> known_shapes();

/// The facts about a save from its shape.
struct FoundShape {
  std::string program;
  std::string evidence;                        ///< "run_config.yaml", "args.tuner_type"
  std::filesystem::path save;                  ///< the folder of the save
  std::vector<std::filesystem::path> configs;  ///< folders that may have a config.json
  std::string settings;                        ///< path of the file with settings; "" for none
  Json facts;             ///< its description of the model, for `table`; null if there is none
  Json alpha;             ///< of an adapter, by the settings; null if not stated
  std::string table;      ///< the map that makes args from the facts
  std::string optimizer;  ///< folder of optimizer state apart from the weights, below the save
  std::string rng;        ///< folder of generator states apart from the weights, below the save
  std::string origin;     ///< "args.hf_checkpoint = /models/Qwen3-4B"; "" if not stated
};

/// The folder that is a checkpoint in a format of Megatron, or has FSDP's files of ranks, where
/// `path` is the folder of a save, or of a run with one save, of a shape that keeps weights below
/// it; the save that newest_save() takes, where it does; else `path` unchanged. Several saves of
/// which no tracker names one are an Error of kind source that lists them.
std::filesystem::path folder_of_weights(std::filesystem::path const& path);

/// The shape of a save whose weights are in `folder`; `args` are its stored ones, null for none.
/// Reads the settings. Damage in them is an Error of kind source.
std::optional<FoundShape> find_shape(std::filesystem::path const& folder, Json const& args);

/// The value in an origin, "/models/Qwen3-4B"; "" if it has none.
std::string value_of_origin(std::string const& origin);

/// The training step in the path of a save, "global_step_10/actor"; nullopt if its shape has none.
std::optional<std::int64_t> step_of(FoundShape const& found);

/// Whether args contain the sizes of a model: those of programs with other model settings do not.
bool describe_a_model(Json const& args);

}  // namespace reshard
