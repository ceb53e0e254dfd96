#include "core/mapping/sides/side_scope.hpp"

#include <algorithm>

namespace reshard {

SideScope::SideScope(Model const& model, MapFile const& map, SideOptions const& options)
    : model_(model), map_(map), options_(options) {
  mesh_words_.insert(model.mesh_axes().begin(), model.mesh_axes().end());
  for (std::string& axis : mesh_axes(map)) mesh_words_.insert(std::move(axis));
  for (MeshAxis const& axis : options.mesh.axes()) mesh_words_.insert(axis.name);
}

Json SideScope::value(std::string_view name, std::vector<SideVariable> const* variables) const {
  if (variables != nullptr) {
    std::string_view const axis = name.substr(0, name.find('.'));
    for (SideVariable const& variable : *variables) {
      if (model_.axes()[variable.axis].name != axis) continue;
      variable.use = std::max(variable.use, SideVariable::Use::asked);
      return axis.size() == name.size() ? Json(variable.value)
                                        : Json(model_.in_set(name, variable.value));
    }
  }
  if (mesh_words_.contains(name)) return options_.mesh.size(name);
  if (name == "local") return options_.local;
  if (auto const found = options_.options.find(std::string(name)); found != options_.options.end())
    return found->second;
  for (NamedExpression const& option : map_.options)
    if (option.name == name)
      return option.expression.evaluate(
          {[](std::string_view) { return std::optional<Json>(); }, {}, false, false});
  return model_.value(name);
}

ExpressionScope SideScope::with(std::vector<SideVariable> const* variables) const {
  ExpressionScope result;
  result.key = [this, variables](std::string_view name) {
    return std::optional<Json>(value(name, variables));
  };
  result.call = [this](std::string_view name,
                       std::span<Json const> arguments) -> std::optional<Json> {
    if (arguments.size() != 1 || arguments[0].text() == nullptr) return std::nullopt;
    if (name == "exists") {
      std::optional<TensorId> const tensor = model_.find_tensor(*arguments[0].text());
      return Json(tensor && (model_.exists(*tensor) || model_.quantised(*tensor)));
    }
    if (name == "has") return Json(options_.has && options_.has(*arguments[0].text()));
    return std::nullopt;
  };
  return result;
}

}  // namespace reshard
