#include "pipeline/verify/suspects/suspect_tensors.hpp"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "core/base/tables/integers.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "core/mapping/adapter.hpp"
#include "core/mapping/quant.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/plan/equal/state_checks.hpp"
#include "stages/plan/config/expected_names.hpp"

namespace reshard {
namespace {

/// The indices along an axis that a tensor has, in order.
std::vector<Index> indices_of(DomainAxis const& axis) {
  std::vector<Index> indices;
  for (Run const& run : axis.runs)
    for (Index i = run.begin; i < run.end; ++i) indices.push_back(i);
  return indices;
}

/// How many of a tensor's first axes number slices: layers, then experts.
std::size_t slice_axes(Model const& model, TensorId tensor) {
  LogicalTensor const& logical = model.tensor(tensor);
  std::size_t count = model.layer_axis(tensor) ? 1 : 0;
  if (count < logical.axes.size() && model.axes()[logical.axes[count].axis].name == "expert")
    ++count;
  return count;
}

/// "layer.3.expert.5.", for each combination.
std::vector<std::string> slice_prefixes(Model const& model, TensorId tensor, std::size_t axes) {
  std::vector<DomainAxis> const domain = model.meant_domain(model.tensor(tensor));
  std::vector<std::string> names{""};
  for (std::size_t d = 0; d < axes; ++d) {
    std::vector<std::string> longer;
    for (std::string const& name : names)
      for (Index const i : indices_of(domain[d]))
        longer.push_back(name + part_prefix(model.axes()[domain[d].axis].name, i));
    names = std::move(longer);
  }
  return names;
}

using Names = std::set<std::string, std::less<>>;

/// Where the names of a config's model begin in stored ones: at their first letter, or behind what
/// a trainer has put before them.
Names prefixes_before_names(Json const& config, Names const& stored, MapLibrary const& library) {
  auto const expected = expected_names(config, stored, library);
  if (!expected || expected->lacking.empty() || !expected->most_lack()) return {""};
  std::string const one = "." + expected->lacking.front();
  Names found;
  for (std::string const& name : stored)
    if (name.ends_with(one)) found.insert(name.substr(0, name.size() - one.size() + 1));
  return found;
}

struct FusedWeights {
  std::string_view name;
  std::vector<std::string_view> words;  ///< the last ones of their names
};

/// Weights that engines store in one matrix.
std::vector<FusedWeights> const& fused_weights() {
  static std::vector<FusedWeights> const fused{{"gate and up", {"gate", "up"}},
                                               {"q, k and v", {"q", "k", "v"}}};
  return fused;
}

}  // namespace

SlicedTensor sliced_tensor(Model const& model, TensorId id, DType dtype) {
  LogicalTensor const& logical = model.tensor(id);
  std::size_t const axes = slice_axes(model, id);
  SlicedTensor result;
  SuspectTensor& tensor = result.tensor;
  tensor.name = logical.name;
  tensor.dtype = dtype;
  tensor.slices = slice_prefixes(model, id, axes);
  std::vector<Index> const shape = logical_shape(model, id);
  result.slice_bytes = static_cast<std::uint64_t>(bits(dtype)) / 8;
  int long_axes = 0;
  for (std::size_t d = axes; d < shape.size(); ++d) {
    result.slice_bytes *= narrow<std::uint64_t>(shape[d]);
    if (shape[d] > 1) ++long_axes;
  }
  tensor.matrix = long_axes >= 2;
  bool const in_slot = logical.slot != SlotId::weight;
  tensor.state = in_slot || is_optimizer_key(logical.name);
  tensor.second_moment =
      in_slot && is_second_moment_slot(model.slots()[static_cast<std::size_t>(logical.slot)]);
  auto const matrix = adapter_of(model, id);
  tensor.adapter = matrix.has_value();
  // Weights that are fused while they are trained (q, k and v) have this matrix in common.
  if (matrix && matrix->matrix == AdapterMatrix::a) tensor.repeated = "lora_a";
  bool const named = logical.name.find("scale") != std::string::npos;
  tensor.scale = named && (!model.schemes().empty() || is_stored_scale(logical.name));
  int const vocab = model.axes().find("vocab");
  tensor.tied = std::ranges::any_of(
      logical.axes, [&](LogicalAxis const& axis) { return static_cast<int>(axis.axis) == vocab; });
  return result;
}

bool can_be_suspect(Model const& model, TensorId id) {
  // Zero points of symmetric forms, and the groups of inputs, are alike in sound models.
  for (std::string_view const ending : {"zero_point", "qzeros", "g_idx"})
    if (model.tensor(id).name.ends_with(ending)) return false;
  return model.tensor(id).axes.size() > 1 || slice_axes(model, id) > 0 || !model.schemes().empty();
}

bool is_stored_scale(std::string_view name) {
  return std::ranges::any_of(std::array{"_scale", "_scale_inv", "_scale_2", "_scales"},
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

std::string fused_scale_of(Model const& model, TensorId id) {
  std::string const& name = model.tensor(id).name;
  for (QuantScheme const& scheme : model.schemes())
    for (QuantPart const& part : scheme.parts) {
      if (part.name != scheme.decode.times && part.name != scheme.decode.divided_by) continue;
      std::string const ending = part_tensor("", scheme, part);
      if (!name.ends_with(ending)) continue;
      std::string_view const weight = std::string_view(name).substr(0, name.size() - ending.size());
      std::size_t const word = weight.rfind('.') + 1;  // 0 where there is no dot
      for (FusedWeights const& fused : fused_weights())
        if (std::ranges::find(fused.words, weight.substr(word)) != fused.words.end())
          return fmt::format("{}{}", weight.substr(0, word), fused.name);
    }
  return "";
}

void note_repeated(JobPlan const& plan, MapLibrary const& library,
                   std::span<SuspectTensor> tensors) {
  if (!plan.stored_names || plan.configs.named.is_null()) return;
  Names names;
  for (SuspectTensor const& tensor : tensors) names.insert(tensor.name);
  std::map<std::string, std::string, std::less<>> weights;
  for (std::string const& prefix : prefixes_before_names(plan.configs.named, names, library)) {
    Names behind;
    for (auto at = names.lower_bound(prefix); at != names.end() && at->starts_with(prefix); ++at)
      behind.insert(at->substr(prefix.size()));
    for (auto const& [name, held] : repeated_names(plan.configs.named, behind, library))
      weights.emplace(prefix + name, prefix + held.weight);
  }
  for (SuspectTensor& tensor : tensors)
    if (auto const found = weights.find(tensor.name); found != weights.end())
      tensor.repeated = found->second;
}

std::string part_name(Model const& model, TensorId tensor, std::span<Index const> indices) {
  std::string name;
  for (std::size_t d = 0; d < slice_axes(model, tensor) && d < indices.size(); ++d)
    name += part_prefix(model.axes()[model.tensor(tensor).axes[d].axis].name, indices[d]);
  return name + model.tensor(tensor).name;
}

}  // namespace reshard
