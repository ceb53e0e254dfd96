#include "stages/plan/source/facts/stated_args.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/files/sight.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/mapping/maps/map_file.hpp"
#include "core/mapping/model.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The member of the settings that a word of [config] is made of: "num_moe_experts" of
/// "num_experts". The word itself where that cannot be told.
std::string setting_of(MapFile const& table, std::string const& word) {
  for (NamedExpression const& arg : table.args)
    if (arg.name == word && !arg.expression.keys().empty()) return arg.expression.keys().front();
  return word;
}

/// Whether a text means a number: 1e6 has no point and 0o17 is of YAML 1.2, so these are texts; so
/// are integers that 64 bits do not hold.
bool means_a_number(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  std::string_view const behind = text.starts_with('.') ? text.substr(1) : text;
  return !behind.empty() && behind.front() >= '0' && behind.front() <= '9' &&
         text.find_first_not_of("0123456789abcdefABCDEFoOxX_:.+-") == std::string_view::npos;
}

/// False also for a text that means a number.
bool is_finite(Json const& value) {
  if (auto const* text = value.text()) return !means_a_number(*text);
  if (auto const* real = value.real()) return std::isfinite(*real);
  if (auto const* items = value.items()) return std::ranges::all_of(*items, is_finite);
  return true;
}

/// A number as YAML has it.
std::string shown(Json const& value) {
  if (auto const* real = value.real(); real != nullptr && !std::isfinite(*real))
    return std::isnan(*real) ? ".nan" : *real > 0 ? ".inf" : "-.inf";
  return value.dump();
}

void refuse_special_numbers(MapFile const& table, Model const& settings,
                            Checkpoint const& checkpoint) {
  for (NamedExpression const& arg : table.args)
    for (std::string const& key : arg.expression.keys())
      if (Json const value = settings.value(key); !is_finite(value))
        fail(
            ErrorKind::source,
            "{}: {} is {}, and must be a finite number (as YAML 1.1 has it: 1.0e+6, 10_000). Correct it there. {}.",
            checkpoint.shares.shape->settings, key, shown(value), way_to_a_config(checkpoint));
}

/// Where the settings state how large the model is, but with something else than an integer.
void refuse_odd_sizes(MapFile const& table, Json const& made, Checkpoint const& checkpoint) {
  for (char const* word : {"num_layers", "hidden_size"}) {
    Json const value = fact(made, word);
    if (value.is_null() || value.integer() != nullptr) continue;
    fail(ErrorKind::source, "{}: {} is {}, and must be an integer. Correct it there. {}.",
         checkpoint.shares.shape->settings, setting_of(table, word), shown(value),
         way_to_a_config(checkpoint));
  }
}

bool is_number(Json const& value) { return value.integer() != nullptr || value.real() != nullptr; }

/// The default of the family's class for a member that is left out; null where the map does not
/// say.
Json default_of(MapFile const& family, std::string const& member) {
  for (NamedExpression const& one : family.defaults) {
    if (one.name != member) continue;
    ExpressionScope scope;
    scope.absent_spreads = true;
    scope.key = [](std::string_view) { return std::optional<Json>(Json()); };
    return one.expression.evaluate(scope);
  }
  return {};
}

}  // namespace

bool from_settings(Checkpoint const& checkpoint) {
  return checkpoint.shares.shape && !checkpoint.shares.shape->facts.is_null() &&
         !describe_a_model(args_of(checkpoint));
}

void check_settings(Checkpoint const& checkpoint, MapFile const& family, Model const& described,
                    MapLibrary const& library) {
  if (!from_settings(checkpoint)) return;
  MapFile const table = library.settings(checkpoint.shares.shape->table);
  for (auto const& [member, value] : described.evaluate(family.config)) {
    auto const entry = std::ranges::find(family.config, member, &NamedExpression::name);
    std::string const& text = entry->expression.text();
    std::vector<std::string> const keys = entry->expression.keys();
    bool const foreseen =
        text.find("??") != std::string::npos || text.find("if(") != std::string::npos;
    bool const lacks = value.is_null() && !foreseen;
    bool const odd = value.text() != nullptr && is_number(default_of(family, member));
    if (keys.empty() || !(lacks || odd)) continue;
    std::string const key = setting_of(table, keys.front());
    fail(ErrorKind::source,
         "{}: {} is {}, and models of {} need a {} there ({} of config.json). Correct that file. "
         "{}.",
         checkpoint.shares.shape->settings, key, odd ? shown(value) : "not stated", family.name,
         odd ? "number" : "value", member, way_to_a_config(checkpoint));
  }
}

Json stated_args(Checkpoint const& checkpoint, MapLibrary const& library) {
  Json stored = args_of(checkpoint);
  if (describe_a_model(stored)) return stored;
  // Settings that a run of another program leaves beside its state describe no model.
  if (!checkpoint.shares.shape) return checkpoint.names == NameOwner::megatron ? stored : Json();
  FoundShape const& shape = *checkpoint.shares.shape;
  if (shape.facts.is_null()) return stored.is_null() ? stored : Json();
  MapFile const table = library.settings(shape.table);
  Model const settings(table, table, {shape.facts, shape.settings});
  refuse_special_numbers(table, settings, checkpoint);
  Json made(Json::Object(settings.evaluate(table.args)));
  if (describe_a_model(made)) return made;
  refuse_odd_sizes(table, made, checkpoint);
  return {};
}

std::string way_to_a_config(Checkpoint const& checkpoint) {
  std::string text = "Set source.config to the config.json of the same model";
  if (checkpoint.shares.shape && !checkpoint.shares.shape->origin.empty())
    text += fmt::format(" ({})", checkpoint.shares.shape->origin);
  return text;
}

}  // namespace reshard
