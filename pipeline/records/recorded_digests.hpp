#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/plan/equal/state_checks.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// The name of a tensor of the model for readers of the target.
inline std::string recorded_name(JobPlan const& plan, std::size_t tensor) {
  LogicalTensor const& one = plan.model->tensors()[tensor];
  std::string const& slot = plan.model->slots()[index(one.slot)];
  if (plan.master_slot.empty() || !is_master_slot(slot)) return one.name;
  return slot_name(one.name.substr(0, one.name.size() - slot_name("", slot).size()),
                   plan.master_slot);
}

/// The digests of a manifest by name. Borrows it.
class RecordedDigests {
 public:
  explicit RecordedDigests(Manifest const& record) {
    for (auto const* const list : {&record.tensors, &record.objects})
      for (TensorDigest const& one : *list) known_.emplace(one.name, &one);
  }

  /// Nothing when it is not recorded, or with another dtype or shape.
  std::optional<std::uint64_t> find(std::string_view name, std::string_view dtype,
                                    std::vector<Index> const& shape) const {
    auto const found = known_.find(name);
    if (found == known_.end() || found->second->dtype != dtype || found->second->shape != shape)
      return std::nullopt;
    return found->second->crc64;
  }

  /// Of a tensor of the plan as its target stores it. Pre: the target has it.
  std::optional<std::uint64_t> of_target(JobPlan const& plan, std::size_t tensor) const {
    auto const blobs = plan.target.tensors[tensor].blobs();
    return find(recorded_name(plan, tensor), name(plan.target.blobs[blobs.front()].dtype),
                logical_shape(*plan.model, TensorId(tensor)));
  }

 private:
  std::unordered_map<std::string_view, TensorDigest const*> known_;
};

/// Whether the target has a tensor of the model.
inline bool is_in_target(JobPlan const& plan, std::size_t tensor) {
  return plan.model->exists(TensorId(tensor)) && !plan.target.tensors[tensor].empty();
}

}  // namespace reshard
