#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/mapping/maps/map_library.hpp"
#include "core/mapping/model.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/verify/surveys/suspect_rules.hpp"

namespace reshard {

/// A logical tensor, cut by its layers and experts.
struct SlicedTensor {
  SuspectTensor tensor;           ///< SuspectTensor::first_slice is 0
  std::uint64_t slice_bytes = 1;  ///< of the row-major tensor
};

/// The rules' facts about a tensor with elements of whole bytes.
SlicedTensor sliced_tensor(Model const& model, TensorId id, DType dtype);

/// Whether sums of its layers and experts can make a suspect of a tensor: of one vector alone they
/// cannot.
bool can_be_suspect(Model const& model, TensorId id);

/// Whether a stored tensor has this name as a scale of quantised weights.
bool is_stored_scale(std::string_view name);

/// SuspectTensor::fused of a tensor.
std::string fused_scale_of(Model const& model, TensorId id);

/// Says of the tensors of a plan with stored names which of them one weight of the model is, by the
/// config.json beside them (PlannedConfigs::named). Looks through Sight.
void note_repeated(JobPlan const& plan, MapLibrary const& library,
                   std::span<SuspectTensor> tensors);

/// "layer.3.expert.5.experts.gate": the part in which an element lies. `indices`: one for each
/// axis.
std::string part_name(Model const& model, TensorId tensor, std::span<Index const> indices);

}  // namespace reshard
