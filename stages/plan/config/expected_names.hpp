#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/mapping/maps/map_library.hpp"

namespace reshard {

/// Tensors that a Hugging Face folder with a config.json must hold by the map of its family.
struct ExpectedNames {
  std::string family;                ///< the map
  std::size_t count = 0;             ///< tensors that the map requires
  std::vector<std::string> lacking;  ///< those that are not stored, in the order of the map
  /// Of those that lack, how many are stored as peft wraps them: "….base_layer.weight".
  std::size_t wrapped = 0;
  /// Whether the folder can hardly be this model.
  bool most_lack() const { return 2 * lacking.size() > count; }
};

/// Compares `stored`, names of tensors, with those that a config.json requires. A weight may be
/// stored in parts of its module: "….qweight" or "….weight_scale" for "….weight"; what lies in a
/// module inside it is another weight, as for loaders. Layers for multi-token prediction may lack.
/// Nothing where no map describes the config. `map`: as in a job file.
std::optional<ExpectedNames> expected_names(Json const& config,
                                            std::set<std::string, std::less<>> const& stored,
                                            MapLibrary const& library,
                                            std::string const& map = "auto");

/// A stored tensor of a weight that others hold, too.
struct RepeatedName {
  std::string weight;
  std::string copy_of;  ///< the stored tensor that it is a copy of by the map, as an output layer
                        ///< that the config ties is one of the embedding; "" where it is none
  friend bool operator==(RepeatedName const&, RepeatedName const&) = default;
};

/// Of `stored`, names of tensors, those that hold one weight of the model several times by the map
/// of the config's family (tied embeddings, the ones that prediction layers repeat). None where no
/// map describes the config.
std::map<std::string, RepeatedName, std::less<>> repeated_names(
    Json const& config, std::set<std::string, std::less<>> const& stored,
    MapLibrary const& library);

/// Of `stored`, the tensors of layers for multi-token prediction by a config, their copies of the
/// embedding and of the output layer and parts of quantised weights included.
struct PredictionNames {
  std::string family;  ///< the name of the map
  Index layers = 0;    ///< decoder layers
  Index counted = 0;   ///< layers for prediction that the config counts
  std::set<std::string, std::less<>> names;
  std::vector<huggingface::ConfigPatch> counts;  ///< the members that count them
};

/// Nothing where no map describes the config.
std::optional<PredictionNames> prediction_names(Json const& config,
                                                std::set<std::string, std::less<>> const& stored,
                                                MapLibrary const& library);

/// Of `stored`, those whose dtype the map states, with that dtype.
std::map<std::string, DType, std::less<>> cast_names(
    Json const& config, std::set<std::string, std::less<>> const& stored,
    MapLibrary const& library);

/// Of `stored`, those that stay F32 where weights become 16-bit ones: whose dtype the map states,
/// and that it lists as such; with `in_f16` also those that stay so beside F16 only. Where no map
/// describes the config, names that are such in every family.
std::set<std::string, std::less<>> full_precision_names(
    Json const& config, std::set<std::string, std::less<>> const& stored, MapLibrary const& library,
    bool in_f16);

/// "27 of the 39 tensors that …/config.json asks for (map 'llama') are missing under their names
/// (…)".
std::string lacking_sentence(ExpectedNames const& expected,
                             std::set<std::string, std::less<>> const& stored,
                             std::string const& config_name);

}  // namespace reshard
