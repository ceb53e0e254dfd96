#pragma once

#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_file.hpp"
#include "core/mapping/model.hpp"
#include "tests/support/mesh_sizes.hpp"

namespace reshard::test {

/// A map of configs/models by name.
MapFile map_file(std::string const& name);

/// Small sizes of a model as each side's configuration says them.
struct SampleModel {
  std::string family;  ///< "qwen3_moe", …
  Json config;         ///< config.json
  Json args;           ///< of Megatron, for the same model
};

/// One per family of configs/models, and variations (tied, biases, dense layers among experts,
/// square shapes).
std::vector<SampleModel> sample_models();

/// Meshes that fit the samples: tp up to 8 (more than groups), uneven pipelines, etp other than tp.
struct SampleMesh {
  MeshSizes mesh;
  int first_stage_layers = -1;
  int last_stage_layers = -1;
};
std::vector<SampleMesh> sample_meshes(bool experts);

}  // namespace reshard::test
