#pragma once

#include <string_view>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/ids.hpp"
#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// The rules of sound optimizer state, checked while it is read.
enum class StateRule {
  rounds_to_weight,  ///< a master weight, rounded to the weight's dtype, is the weight
  not_negative       ///< a second moment is finite and not below zero
};

/// One tensor of state. The bytes of rounded master weights have a digest of their own, `rounded`,
/// which must be that of the weight: both count in the same order. Masters of F32 weights are
/// compared as they are. `state` is `weight` if masters replace it (Catalog::masters): the weight
/// itself is then in no catalogue.
struct StateCheck {
  StateRule rule = StateRule::not_negative;
  TensorId state{};
  TensorId weight{};
  DType weight_dtype = DType::bf16;
  DigestId rounded = DigestId::none;
};

/// Whether a slot contains master weights, or second moments, by the words of all formats.
bool is_master_slot(std::string_view slot);
bool is_second_moment_slot(std::string_view slot);

/// The possible checks: of F32 state of weights that are stored as BF16, F16 or F32. The digests of
/// rounded values are numbered from `first` on.
std::vector<StateCheck> state_checks(Model const& model, Catalog const& source, DigestId first);

}  // namespace reshard
