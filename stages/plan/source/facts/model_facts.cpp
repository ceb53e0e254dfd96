#include "stages/plan/source/facts/model_facts.hpp"

namespace reshard {
namespace {

/// Whether the axis matters: tensors are made of it, or it is in the maps for a fact alone
/// ("zero_centred"), of which no tensor ever is.
bool matters(Model const& model, Model const& other, std::string const& axis) {
  if (model.fact_alone(axis) && other.fact_alone(axis)) return true;
  int const id = model.axes().find(axis);
  for (LogicalTensor const& tensor : model.tensors())
    for (LogicalAxis const& part : tensor.axes)
      if (static_cast<int>(part.axis) == id && model.volume(tensor) > 0) return true;
  return false;
}

}  // namespace

std::optional<AxisConflict> axis_conflict(Model const& by_config, Model const& by_args,
                                          Json const& args) {
  AxisTable const& axes = by_config.axes();
  for (std::string const& axis : axes.names()) {
    int const theirs = by_args.axes().find(axis);
    if (theirs < 0 || !matters(by_config, by_args, axis)) continue;
    Index const in_args = by_args.axes()[static_cast<AxisId>(theirs)].size;
    Index const in_config = axes[static_cast<AxisId>(axes.find(axis))].size;
    Json const* stated = args.find("vocab_size");
    bool const unknown_vocab = axis == "vocab" && (stated == nullptr || stated->is_null());
    if (in_args == in_config || (unknown_vocab && in_args >= in_config)) continue;
    return AxisConflict{axis, in_config, in_args};
  }
  return std::nullopt;
}

Json config_from_args(MapFile const& family, Model const& described) {
  Json result = Json::object();
  for (auto& [key, value] : described.evaluate(family.config)) {
    auto const dot = key.find('.');
    if (dot == std::string::npos) {
      result.set(key, std::move(value));
    } else if (!value.is_null()) {
      std::string const outer = key.substr(0, dot);
      Json const* known = result.find(outer);
      Json inner = known == nullptr ? Json::object() : *known;
      inner.set(key.substr(dot + 1), std::move(value));
      result.set(outer, std::move(inner));
    }
  }
  return result;
}

std::vector<huggingface::ConfigPatch> prediction_layer_changes(MapFile const& family,
                                                               Json const& config, Index there) {
  std::vector<huggingface::ConfigPatch> result;
  for (NamedExpression const& let : family.let) {
    if (let.name != "M") continue;
    for (std::string const& key : let.expression.keys())
      for (std::string const& outer : {family.facts, std::string()}) {
        Json const stated = fact(config, outer.empty() ? key : outer + "." + key);
        if (stated.integer() == nullptr || *stated.integer() == 0) continue;
        huggingface::ConfigPatch& change = result.emplace_back();
        change.path = words_of(outer);
        change.path.push_back(key);
        change.value.emplace(there);
        if (family.facts.empty()) break;
      }
  }
  return result;
}

}  // namespace reshard
