#pragma once

#include <string_view>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/ids.hpp"
#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// What sound optimizer state satisfies, and what is looked at while it is read.
enum class StateRule {
  rounds_to_weight,  ///< a master weight, rounded to the weight's dtype, is the weight
  not_negative       ///< a second moment is finite and not below zero
};

/// One tensor of state. The bytes of rounded master weights have a digest of their own, `rounded`,
/// which must be that of the weight: both count in the same order. Masters of F32 weights are
/// compared as they are. `state` is `weight` where masters stand in its place (Catalog::masters):
/// the weight itself is in no catalogue then.
struct StateCheck {
  StateRule rule = StateRule::not_negative;
  TensorId state{};
  TensorId weight{};
  DType weight_dtype = DType::bf16;
  DigestId rounded = DigestId::none;
};

/// Whether a slot holds master weights, in any format's word; likewise second moments.
bool is_master_slot(std::string_view slot);
bool is_second_moment_slot(std::string_view slot);

/// Everything that can be checked: F32 state, of weights that are stored as BF16, F16 or F32. The
/// digests of rounded values are numbered from `first` on.
std::vector<StateCheck> state_checks(Model const& model, Catalog const& source, DigestId first);

}  // namespace reshard
