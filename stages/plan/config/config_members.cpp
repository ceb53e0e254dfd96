#include "stages/plan/config/config_members.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/base/text/text.hpp"
#include "core/formats/huggingface/config/config.hpp"

namespace reshard {
namespace {

/// Longer lists are tried at their ends.
constexpr std::size_t most_items_tried = 16;
constexpr std::size_t deepest = 6;

/// NaN or an infinity, as config.json has it since transformers 5: {"__float__": "NaN"}.
std::string const* special_number(Json const& value) {
  Json const* word = value.members() != nullptr && value.members()->size() == 1
                         ? value.find("__float__")
                         : nullptr;
  return word == nullptr ? nullptr : word->text();
}

/// Other values of the same kind.
std::vector<Json> others(Json const& value) {
  if (auto const* flag = value.boolean()) return {Json(!*flag)};
  if (auto const* number = value.integer())
    return {Json(std::abs(*number) < (std::int64_t{1} << 40) ? 2 * *number + 1 : *number / 2),
            Json(0)};
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

std::string expression_of(MapFile const& family, std::string_view arg) {
  auto const found = std::ranges::find_if(
      family.args, [&](NamedExpression const& item) { return item.name == arg; });
  return found == family.args.end() ? std::string() : "'" + found->expression.text() + "'";
}

}  // namespace

ConfigMembers::ConfigMembers(MapFile const& family, MapFile const& core, Json const& config)
    : family_(family),
      core_(core),
      config_(completed_config(family, config)),
      model_(family, core, {config_, "config.json"}),
      neutral_(family, core, model_),
      state_(state(config_)) {
  std::vector<std::string> const facts = words_of(family.facts);
  for (std::size_t depth = facts.size() + 1; depth-- > 0;) {  // from the inside outwards
    std::vector<std::string> const path(facts.begin(),
                                        facts.begin() + static_cast<std::ptrdiff_t>(depth));
    Json const object =
        path.empty() ? config_ : fact(config_, fmt::format("{}", fmt::join(path, ".")));
    if (object.members() != nullptr)
      add_members(object, {path, "", {}}, depth == facts.size() ? "" : facts[depth]);
  }
  for (ConfigMember const& member : all_)
    if (!member.kept && !neutral(member, member.value)) members_.push_back(member);
}

void ConfigMembers::add_members(Json const& object, ConfigMember outer, std::string_view without) {
  Json const* inner = without.empty() ? nullptr : object.find(without);
  for (auto const& [name, value] : *object.members()) {
    if (name == without || (inner != nullptr && inner->find(name) != nullptr)) continue;
    ConfigMember member{outer.path, outer.key.empty() ? name : outer.key + "." + name, value,
                        outer.kept};
    member.path.push_back(name);
    member.kept = member.kept || neutral_.kept(member.key);
    if (member.kept ? outer.kept && neutral_.always(name) : neutral_.always(member.key)) continue;
    if (value.members() != nullptr && member.path.size() < deepest &&
        special_number(value) == nullptr)
      add_members(value, std::move(member), "");
    else
      all_.push_back(std::move(member));
  }
}

/// Of a part that is carried nothing is known but what has no part in any function.
bool ConfigMembers::neutral(ConfigMember const& member, Json const& value) const {
  return neutral_.neutral(member.kept ? std::string_view() : std::string_view(member.key), value);
}

bool ConfigMembers::differs_with(std::vector<std::string> const& path, Json const& value) const {
  huggingface::ConfigPatch const change{path, value};
  return state(huggingface::patched_config(config_, std::span(&change, 1))) != state_;
}

bool ConfigMembers::held(ConfigMember const& member) const {
  std::vector<Json> const values = others(member.value);
  return std::any_of(values.begin(), values.end(),
                     [&](Json const& value) { return differs_with(member.path, value); });
}

/// All that a target takes from config.json. What no map can describe is a state of its own.
std::string ConfigMembers::state(Json const& config) const {
  try {
    Model const model(family_, core_, {config, "config.json"});
    std::string text = Json(Json::Object(model.evaluate(family_.args))).dump();
    AxisTable const& axes = model.axes();
    for (std::string const& name : axes.names())
      text += fmt::format(" {}={}", name, axes[static_cast<AxisId>(axes.find(name))].size);
    return text;
  } catch (Error const& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return error.sentence();
  }
}

std::string shown_value(Json const& value) {
  constexpr std::size_t most = 90;
  if (auto const* word = special_number(value)) return *word;
  std::string text = value.dump();
  if (text.size() > most) text = valid_utf8(text.substr(0, most)) + "…";
  return text;
}

void refuse_special_numbers(MapFile const& family, Json const& args) {
  for (auto const& [name, value] : *args.members())
    if (special_number(value) != nullptr)
      fail(ErrorKind::source,
           "config.json: args.{} would be {}, from {} of {}. No model can use that: correct "
           "the member of config.json.",
           name, shown_value(value), expression_of(family, name), family.name);
}

std::string unheld_warning(MapFile const& family, MapFile const& core, Json const& config,
                           bool kept) {
  ConfigMembers const all(family, core, config);
  std::vector<std::string> lost;
  for (ConfigMember const& member : all.members())
    if (!all.held(member))
      lost.push_back(fmt::format("{} = {}", member.key, shown_value(member.value)));
  if (lost.empty()) return "";
  return fmt::format(
      "config.json states {}, which Megatron's args cannot hold: a model trained from this "
      "checkpoint computes something else. {}",
      listed(lost, 20), kept ? "It is kept in huggingface/config.json" : "Keep that file");
}

}  // namespace reshard
