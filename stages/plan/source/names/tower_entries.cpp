#include "stages/plan/source/names/tower_entries.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/model.hpp"
#include "stages/plan/source/names/trainer_names.hpp"

namespace reshard {
namespace {

constexpr char const* switch_name = "tower";
constexpr char const* condition_name = "tower_when";

MapMacro const* macro_of(MapFile const& map, std::string_view field) {
  auto const found = std::ranges::find(map.macros, field, &MapMacro::name);
  return found == map.macros.end() ? nullptr : &*found;
}

/// Every way to spell a name, with '*' for its fields.
void spell(MapFile const& family, std::string const& text, int depth,
           std::vector<std::string>& result) {
  std::size_t const open = text.find('{');
  if (open == std::string::npos || depth > 8) return result.push_back(text);
  std::size_t const close = text.find('}', open);
  if (close == std::string::npos) return result.push_back(text);
  std::string const head = text.substr(0, open);
  std::string const tail = text.substr(close + 1);
  MapMacro const* macro =
      macro_of(family, std::string_view(text).substr(open + 1, close - open - 1));
  if (macro == nullptr) return spell(family, head + "*" + tail, depth, result);
  for (MacroChoice const& choice : macro->choices)
    spell(family, head + choice.text + tail, depth + 1, result);
}

bool matches(std::vector<std::string> const& patterns, std::string const& name) {
  return std::ranges::any_of(patterns, [&](auto const& one) { return matches_glob(one, name); });
}

void set_let(MapFile& map, char const* name, Expression value) {
  auto const known = std::ranges::find(map.let, name, &NamedExpression::name);
  if (known == map.let.end())
    map.let.push_back({name, std::move(value)});
  else
    known->expression = std::move(value);
}

}  // namespace

TowerEntries::TowerEntries(MapChoice const& maps, Json const& config) {
  MapFile const& family = *maps.family;
  auto const has = [&](char const* let) {
    return std::ranges::find(family.let, let, &NamedExpression::name) != family.let.end();
  };
  if (!has(switch_name)) return;
  if (has(condition_name)) {
    Json const holds = Model(family, maps.core, {config, "config.json"}).value(condition_name);
    if (holds.integer() == nullptr || *holds.integer() == 0) return;
  }
  for (MapName const& name : family.stored) {
    if (name.entries.empty()) continue;
    Entry entry{&name, {}};
    spell(family, name.name, 0, entry.globs);
    if (std::ranges::any_of(entry.globs,
                            [&](auto const& glob) { return matches(family.keep, glob); }))
      entries_.push_back(std::move(entry));
  }
}

bool TowerEntries::describes(std::string const& name) const {
  return std::ranges::any_of(entries_,
                             [&](Entry const& entry) { return matches(entry.globs, name); });
}

void TowerEntries::switch_on(MapChoice& maps) {
  for (MapFile* map : {&maps.core, &*maps.family})
    set_let(*map, switch_name, Expression::parse("1", map->name));
}

void TowerEntries::add(MapFile& core, MapFile const& family, MapKept const* trainer) const {
  for (Entry const& entry : entries_) {
    MapName made = *entry.name;
    if (trainer != nullptr) {
      auto const part = part_of_family(*trainer, made.name);
      if (!part)
        fail(ErrorKind::usage,
             "{}: [kept.{}] has no name for '{}', which {} describes. Add it to that table.",
             trainer->place, trainer->name, made.name, made.place);
      made.name = trainer_name(*part);
    }
    for (MapMacro const& macro : family.macros)
      if (made.name.find("{" + macro.name + "}") != std::string::npos &&
          macro_of(core, macro.name) == nullptr)
        core.macros.push_back(macro);
    for (MapEntry& one : made.entries) {
      one.at = {"E"};
      one.when = names_of(trainer, one.place);
      for (AxisRule const& rule : core.rules) one.whole.push_back(rule.axis);  // every rank has all
    }
    core.stored.push_back(std::move(made));
  }
}

Expression names_of(MapKept const* trainer, std::string const& place) {
  return Expression::parse(
      fmt::format("(names ?? '') == '{}'", trainer == nullptr ? "" : trainer->name), place);
}

}  // namespace reshard
