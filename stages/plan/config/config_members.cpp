#include "stages/plan/config/config_members.hpp"

#include <algorithm>

#include "core/base/text.hpp"
#include "core/formats/huggingface/config.hpp"

namespace reshard {
namespace {

/// Longer lists are tried at their ends.
constexpr std::size_t most_items_tried = 16;
constexpr std::size_t deepest = 6;

bool says_nothing(Json const& value) {
  if (value.is_null()) return true;
  if (auto const* flag = value.boolean()) return !*flag;
  if (auto const* text = value.text()) return text->empty();
  if (auto const* items = value.items()) return items->empty();
  return value.members() != nullptr && value.members()->empty();
}

/// Other values of the same kind.
std::vector<Json> others(Json const& value) {
  if (auto const* flag = value.boolean()) return {Json(!*flag)};
  if (auto const* number = value.integer()) return {Json(std::abs(*number) < (std::int64_t{1} << 40) ? 2 * *number + 1 : *number / 2), Json(0)};
  if (auto const* real = value.real()) return {Json(2 * *real + 1)};
  if (auto const* text = value.text()) return {Json(*text + "?")};
  std::vector<Json> result;
  auto const* items = value.items();
  if (items == nullptr) return result;
  Json::Array turned(items->rbegin(), items->rend());
  result.emplace_back(std::move(turned));
  for (std::size_t i = 0; i < items->size(); ++i) {
    if (i >= most_items_tried / 2 && i + most_items_tried / 2 < items->size()) continue;
    for (Json const& other : others((*items)[i])) {
      Json::Array changed = *items;
      changed[i] = other;
      result.emplace_back(std::move(changed));
    }
  }
  result.push_back(Json::array());
  return result;
}

bool fits(std::string_view pattern, std::string_view key) {
  return pattern.find('*') == std::string_view::npos ? pattern == key : matches_glob(pattern, key);
}

}  // namespace

ConfigMembers::ConfigMembers(MapFile const& family, MapFile const& core, Json const& config)
    : family_(family), core_(core), config_(config), model_(family, core, {config, "config.json"}), state_(state(config)) {
  Json const* inner = family.facts.empty() ? nullptr : config.find(family.facts);
  if (inner != nullptr && inner->members() != nullptr) add_members(*inner, {family.facts}, "", "");
  add_members(config, {}, "", family.facts);
}

void ConfigMembers::add_members(Json const& object, std::vector<std::string> path, std::string const& key, std::string_view without) {
  Json const* inner = without.empty() ? nullptr : object.find(without);
  for (auto const& [name, value] : *object.members()) {
    if (name == without || (inner != nullptr && inner->find(name) != nullptr)) continue;
    std::string const inner_key = key.empty() ? name : key + "." + name;
    if (neutral(inner_key, value)) continue;
    path.push_back(name);
    if (value.members() != nullptr && path.size() < deepest)
      add_members(value, path, inner_key, "");
    else
      members_.push_back({path, inner_key, value});
    path.pop_back();
  }
}

bool ConfigMembers::neutral(std::string_view key, Json const& value) const {
  for (MapFile const* map : {&family_, &core_})
    for (NamedExpression const& entry : map->neutral) {
      if (!fits(entry.name, key)) continue;
      if (entry.expression.empty()) return value.is_null();
      ExpressionScope scope;
      scope.absent_spreads = true;
      scope.key = [&](std::string_view word) { return std::optional<Json>(word == "it" ? value : model_.value(word)); };
      return entry.expression.holds(scope) || value.is_null();
    }
  return says_nothing(value);
}

bool ConfigMembers::differs_with(std::vector<std::string> const& path, Json const& value) const {
  huggingface::ConfigPatch const change{path, value.is_null() ? std::nullopt : std::optional(value)};
  return state(huggingface::patched_config(config_, std::span(&change, 1))) != state_;
}

bool ConfigMembers::held(ConfigMember const& member) const {
  std::vector<Json> const values = others(member.value);
  return std::any_of(values.begin(), values.end(), [&](Json const& value) { return differs_with(member.path, value); });
}

/// All that a target takes from config.json. What no map can describe is a state of its own.
std::string ConfigMembers::state(Json const& config) const {
  try {
    Model const model(family_, core_, {config, "config.json"});
    std::string text = Json(Json::Object(model.evaluate(family_.args))).dump();
    AxisTable const& axes = model.axes();
    for (std::string const& name : axes.names()) text += fmt::format(" {}={}", name, axes[static_cast<AxisId>(axes.find(name))].size);
    return text;
  } catch (Error const& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return error.sentence();
  }
}

std::string shown_value(Json const& value) {
  constexpr std::size_t most = 90;
  std::string text = value.dump();
  if (text.size() > most) text = valid_utf8(text.substr(0, most)) + "…";
  return text;
}

std::string unheld_warning(MapFile const& family, MapFile const& core, Json const& config, bool kept) {
  ConfigMembers const all(family, core, config);
  std::vector<std::string> lost;
  for (ConfigMember const& member : all.members())
    if (!all.held(member)) lost.push_back(fmt::format("{} = {}", member.key, shown_value(member.value)));
  if (lost.empty()) return "";
  return fmt::format("config.json says {}, which Megatron's args cannot hold: what is trained from this checkpoint computes something else. {}",
                     listed(lost, 20), kept ? "It is kept in huggingface/config.json" : "Keep that file");
}

}  // namespace reshard
