#include "stages/plan/adapter/adapter_places.hpp"

#include <algorithm>
#include <set>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/adapter.hpp"

namespace reshard {
namespace {

/// The layers that have a matrix; {-1} for one without layers.
std::set<Index> layers_of(Model const& model, TensorId tensor) {
  auto const axis = model.layer_axis(tensor);
  if (!axis) return {-1};
  std::set<Index> layers;
  for (DomainAxis const& part : model.domain(model.tensor(tensor)))
    if (part.axis == *axis)
      for (Run const& run : part.runs)
        for (Index i = run.begin; i < run.end; ++i) layers.insert(i);
  return layers;
}

/// Those that have matrices of a weight, of any rank.
std::set<Index> adapted_layers(Model const& model, std::string const& weight) {
  std::set<Index> layers;
  for (std::size_t t = 0; t < model.tensors().size(); ++t)
    if (auto const matrix = adapter_of(model, TensorId(t));
        matrix && model.exists(TensorId(t)) && model.tensor(matrix->weight).name == weight)
      layers.merge(layers_of(model, TensorId(t)));
  return layers;
}

/// The layers of a tensor that the target has a place for, at least in part; {-1} as above.
std::set<Index> held_layers(Model const& model, TensorId tensor, TensorPieces const& stored) {
  std::set<Index> layers;
  auto const axis = model.layer_axis(tensor);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    Piece const piece = stored[i];
    if (!axis) layers.insert(-1);
    for (PieceDigit const& digit : piece.digits)
      if (axis && digit.axis == *axis)
        for (Index n = 0; n < digit.count; ++n) layers.insert((digit.first + n) * digit.div);
  }
  return layers;
}

/// The weights that Megatron stores in one tensor with this one.
std::set<std::string> fused_with(Model const& model, MapFile const& core,
                                 std::string const& weight) {
  std::set<std::string> result;
  for (MapName const& name : core.stored)
    for (MapEntry const& entry : name.entries) {
      std::vector<std::string> const weights = parse_layout(entry.is).tensors();
      if (std::ranges::find(weights, weight) == weights.end()) continue;
      for (std::string const& one : weights)
        if (one != weight && in_base_model(model, one)) result.insert(one);
    }
  return result;
}

/// The last word of the name that Megatron has for a weight.
std::string word_of(MapFile const& core, std::string const& weight) {
  for (MapName const& name : core.stored)
    for (MapEntry const& entry : name.entries) {
      std::vector<std::string> const weights = parse_layout(entry.is).tensors();
      if (std::ranges::find(weights, weight) != weights.end())
        return std::string(module_and_word(name.name).second);
    }
  RESHARD_EXPECT(false);  // the target has this weight
  return {};
}

}  // namespace

void check_adapter_places(Model const& model, MapFile const& core, Catalog const& target) {
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    auto const matrix = adapter_of(model, TensorId(t));
    if (!matrix || !model.exists(TensorId(t))) continue;
    std::string const& weight = model.tensor(matrix->weight).name;
    auto const own = adapted_layers(model, weight);
    auto const held = held_layers(model, TensorId(t), target.tensors[t]);
    if (std::ranges::includes(held, layers_of(model, TensorId(t)))) continue;
    for (std::string const& other : fused_with(model, core, weight))
      if (adapted_layers(model, other) != own)
        fail(ErrorKind::usage,
             "[target] adapter: this form has one adapter for the fused weight of '{}' and "
             "'{}', and the source adapts '{}' in {} and '{}' in {}. Set target.adapter "
             "= \"canonical\", which has one for each. Other programs need an adapter that was "
             "trained on all of them.",
             weight, other, weight, counted(own.size(), "layer"), other,
             adapted_layers(model, other).size());
    fail(ErrorKind::usage,
         "[target] adapter: the source adapts '{}', which Megatron stores as '{}', a parameter of "
         "no linear layer: its programs have no adapter of it. Merge it, in a job whose source is "
         "the base model (source.adapter, model.adapter = \"merge\"), or train an adapter that "
         "leaves it out (exclude_modules).",
         weight, word_of(core, weight));
  }
}

}  // namespace reshard
