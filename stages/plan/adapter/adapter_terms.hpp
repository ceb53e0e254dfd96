#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/formats/huggingface/config/lora_config.hpp"
#include "core/mapping/model.hpp"
#include "stages/plan/adapter/low_rank_pairs.hpp"

namespace reshard {

/// The settings of adapter_config.json for each matrix of a model. Its patterns mean modules of the
/// family, whatever names the adapter's tensors have.
class AdapterTerms {
 public:
  /// `family` gives modules their names; nullptr where it is not known. All outlive this.
  AdapterTerms(huggingface::LoraConfig const& config, Model const& model, MapFile const* family);

  /// Errors of kind source: a rank that differs from the one that the config states, a scale that
  /// is no finite number, a pattern where the module's name is not known.
  MatrixTerms of(TensorId weight, MatrixPlace const& place, Index rank) const;

 private:
  /// Modules by the indices of some axes.
  struct Named {
    std::vector<AxisId> axes;
    std::map<std::vector<Index>, std::string> modules;
  };
  std::string const* module(TensorId weight, MatrixPlace const& place) const;

  huggingface::LoraConfig const& config_;
  Model const& model_;
  std::map<TensorId, std::vector<Named>> named_;
};

}  // namespace reshard
