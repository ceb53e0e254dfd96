#include "core/plan/equal/state_checks.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "core/base/tables/integers.hpp"

namespace reshard {
namespace {

template <std::size_t Count>
bool is_one_of(std::array<std::string_view, Count> const& words, std::string_view slot) {
  return std::ranges::find(words, slot) != words.end();
}

/// The dtype of stored values; nullopt if they are computed.
std::optional<DType> stored_dtype(Catalog const& source, TensorId tensor) {
  auto const blobs = source.tensors[index(tensor)].blobs();
  if (blobs.empty()) return std::nullopt;
  for (std::uint32_t const blob : blobs)
    if (source.blobs[blob].file >= source.real_files()) return std::nullopt;
  return source.blobs[blobs.front()].dtype;
}

}  // namespace

bool is_master_slot(std::string_view slot) {
  return is_one_of(std::array<std::string_view, 4>{"param", "fp32_param", "fp32", "master"}, slot);
}

bool is_second_moment_slot(std::string_view slot) { return slot == "exp_avg_sq"; }

std::vector<StateCheck> state_checks(Model const& model, Catalog const& source, DigestId first) {
  std::vector<StateCheck> checks;
  std::uint32_t next = static_cast<std::uint32_t>(first);
  std::size_t const slots = model.slots().size();
  for (auto const& [weight, dtype] : source.masters)
    checks.push_back({StateRule::rounds_to_weight, weight, weight, dtype,
                      dtype == DType::f32 ? digest_of(weight) : DigestId(next++)});
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    auto const weight = TensorId(t);
    if (model.tensor(weight).slot != SlotId::weight || !model.exists(weight)) continue;
    for (std::size_t s = 1; s < slots; ++s) {
      std::optional<TensorId> const held = model.state_of(weight, SlotId(s));
      if (!held || stored_dtype(source, *held) != DType::f32) continue;
      TensorId const state = *held;
      if (is_second_moment_slot(model.slots()[s]))
        checks.push_back({StateRule::not_negative, state, weight});
      auto const dtype = stored_dtype(source, weight);
      if (!is_master_slot(model.slots()[s]) || !dtype) continue;
      if (dtype == DType::bf16 || dtype == DType::f16)
        checks.push_back({StateRule::rounds_to_weight, state, weight, *dtype, DigestId(next++)});
      if (dtype == DType::f32)
        checks.push_back({StateRule::rounds_to_weight, state, weight, *dtype, digest_of(state)});
    }
  }
  return checks;
}

}  // namespace reshard
