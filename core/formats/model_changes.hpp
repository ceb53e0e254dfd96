#pragma once

#include <string>

#include "core/base/tables/integers.hpp"

namespace reshard {

/// Values of the rows of tokens that the source does not have.
enum class NewRows {
  refuse,  ///< the job has to say it
  zero,
  mean,  ///< of all rows of the source, summed in F64 in their order and rounded once
};

enum class PredictionLayers {
  keep,
  drop,
  draft,  ///< they alone, with the embedding and the output layer
};

/// Differences of a target's model from the source's: other sizes of some axes, or selected indices
/// of them.
struct ModelChanges {
  Index vocab_size = 0;  ///< 0: as in the source
  NewRows new_rows = NewRows::refuse;
  std::string keep_layers;   ///< "0-15, 20": decoder layers, renumbered; "": all
  std::string keep_experts;  ///< "0-63", or by layer "0-3: 0-7; 4: 8-15"; "": all
  PredictionLayers mtp = PredictionLayers::keep;
  std::string rows_from;  ///< a safetensors file of the rows that are added (Checkpoint::new_rows)
  std::string mtp_from;   ///< a folder whose prediction layers the target has

  bool any() const {
    return vocab_size > 0 || !keep_layers.empty() || !keep_experts.empty() ||
           mtp != PredictionLayers::keep || !mtp_from.empty();
  }
  friend bool operator==(ModelChanges const&, ModelChanges const&) = default;
};

}  // namespace reshard
