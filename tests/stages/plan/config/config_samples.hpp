#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/mapping/model.hpp"

/// Small configs of the families, their maps and Megatron's args of them, for the tests of this
/// folder.
namespace reshard {

namespace fs = std::filesystem;
using Keys = std::vector<std::string>;
using huggingface::ConfigPatch;

inline fs::path maps_folder() { return fs::path(RESHARD_SOURCE_DIR) / "configs" / "models"; }

inline Json published(std::string const& name) {
  fs::path const path =
      fs::path(RESHARD_SOURCE_DIR) / "tests" / "data" / "configs" / (name + ".json");
  return parse_json(read_text_file(path, 1U << 20), path.string());
}

inline MapChoice maps_of(Json const& config) {
  return MapLibrary({maps_folder()}).choose("auto", config, Json(), true);
}

inline Json with(Json config, std::vector<std::string> path, Json value) {
  ConfigPatch const patch{std::move(path), std::move(value)};
  return huggingface::patched_config(std::move(config), std::span(&patch, 1));
}

inline Json small(std::string const& type) {
  Json config;
  config.set("model_type", type)
      .set("hidden_size", 48)
      .set("num_hidden_layers", 4)
      .set("num_attention_heads", 6)
      .set("num_key_value_heads", 2);
  config.set("head_dim", 8)
      .set("intermediate_size", 60)
      .set("vocab_size", 90)
      .set("max_position_embeddings", 128)
      .set("rms_norm_eps", 1e-5);
  config.set("hidden_act", "silu").set("rope_theta", 10000.0).set("tie_word_embeddings", false);
  return config;
}

inline Json rope(std::string_view type) {
  Json scaling;
  scaling.set("rope_type", type).set("factor", 4.0);
  return scaling;
}

inline Json args_of(MapChoice const& maps, Json const& config) {
  return Json(Json::Object(
      Model(*maps.family, maps.core, {config, "config.json"}).evaluate(maps.family->args)));
}

}  // namespace reshard
