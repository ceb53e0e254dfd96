#include "stages/plan/adapter/adapter_terms.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/mapping/adapter.hpp"
#include "core/mapping/sides/side.hpp"

namespace reshard {
namespace {

/// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight"; a parameter that is adapted
/// as such keeps its name.
std::string module_of(std::string const& name) {
  constexpr std::string_view word = ".weight";
  return name.ends_with(word) ? name.substr(0, name.size() - word.size()) : name;
}

}  // namespace

AdapterTerms::AdapterTerms(huggingface::LoraConfig const& config, Model const& model,
                           MapFile const* family)
    : config_(config), model_(model) {
  if (family == nullptr) return;
  SideOptions options;
  options.has = [&config](std::string_view name) {
    return means_module_of(config.parameters(), name);
  };
  Side const side(model, *family, std::move(options));
  for (StoredName const& name : side.names(nullptr)) {
    if (name.copy) continue;
    for (TensorId const tensor : side.tensors(name.entry)) {
      std::vector<Piece> counted(1);
      counted.front().tensor = tensor;
      side.add_name_digits(name, {}, counted);
      std::vector<AxisId> axes;
      std::vector<Index> at;
      for (PieceDigit const& digit : counted.front().digits) {
        axes.push_back(digit.axis);
        at.push_back(digit.first);
      }
      std::vector<Named>& all = named_[tensor];
      auto found = std::ranges::find(all, axes, &Named::axes);
      if (found == all.end()) found = all.insert(all.end(), {axes, {}});
      found->modules.emplace(std::move(at), module_of(name.name));
    }
  }
}

std::string const* AdapterTerms::module(TensorId weight, MatrixPlace const& place) const {
  auto const named = named_.find(weight);
  if (named == named_.end()) return nullptr;
  for (Named const& one : named->second) {
    std::vector<Index> at;
    for (AxisId const axis : one.axes)
      if (auto const found = std::ranges::find(place, axis, &MatrixPlace::value_type::first);
          found != place.end())
        at.push_back(found->second);
    auto const known = one.modules.find(at);
    if (known != one.modules.end()) return &known->second;
  }
  return nullptr;
}

MatrixTerms AdapterTerms::of(TensorId weight, MatrixPlace const& place, Index rank) const {
  std::string const* const found = module(weight, place);
  std::string const& name = model_.tensor(weight).name;
  if (found == nullptr && !config_.same_alpha())
    fail(ErrorKind::source,
         "{}: alpha_pattern names modules of the model's family, and no map describes which of "
         "them '{}' is. Name the family's map with model.map.",
         config_.place(), name);
  std::string const& module = found != nullptr ? *found : name;
  if (found != nullptr && config_.states_rank()) config_.check(module, rank);
  return {module, config_.scale(module, rank)};
}

}  // namespace reshard
