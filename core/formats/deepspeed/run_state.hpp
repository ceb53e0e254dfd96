#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/tables/integers.hpp"
#include "core/formats/run/torch_optimizer.hpp"

namespace reshard::deepspeed {

/// The state of a DeepSpeed run other than the stored tensors.
struct RunState {
  std::int64_t stage = 0;  ///< of ZeRO; of a universal checkpoint, that of its source
  bool universal = false;
  Index ranks = 1;      ///< that share the parameters
  std::string version;  ///< of DeepSpeed; "" if not stated
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  bool scales_loss = false;          ///< with a dynamic scale: FP16
  std::filesystem::path model_file;  ///< the model states of the first rank
  TorchOptimizer optimizer;
  bool tensor_steps = false;              ///< steps are a tensor for each parameter
  std::vector<std::string> second_names;  ///< of weights that are shared: tied embeddings
};

}  // namespace reshard::deepspeed
