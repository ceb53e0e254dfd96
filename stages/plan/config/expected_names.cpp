#include "stages/plan/config/expected_names.hpp"

#include <algorithm>

#include "core/base/capture.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/mapping/sides/side.hpp"
#include "stages/plan/source/facts/model_facts.hpp"

namespace reshard {
namespace {

using Names = std::set<std::string, std::less<>>;

bool has_like(Names const& stored, std::string_view name) {
  if (name.find_first_of("*?") == std::string_view::npos) return stored.contains(name);
  return std::ranges::any_of(stored,
                             [&](std::string const& known) { return matches_glob(name, known); });
}

constexpr std::string_view usual = "weight";

/// As it is, or in parts: "….qweight", "….weight_scale" and "….weight.absmax" for "….weight".
bool holds(Names const& stored, std::string_view name) {
  if (stored.contains(name)) return true;
  bool const is_weight = name.ends_with(usual);
  std::string_view const start = is_weight ? name.substr(0, name.size() - usual.size()) : name;
  for (auto at = stored.lower_bound(start); at != stored.end() && at->starts_with(start); ++at) {
    std::string_view const rest = std::string_view(*at).substr(start.size());
    if (rest.find('.') == std::string_view::npos && !(is_weight && rest.ends_with("bias")))
      return true;
    if (is_weight && rest.starts_with(usual) && rest[usual.size()] == '.') return true;
  }
  return false;
}

/// Whether peft has put a layer around the module: "q_proj.base_layer.weight".
bool is_wrapped(Names const& stored, std::string_view name) {
  std::size_t const dot = name.rfind('.');
  return dot != std::string_view::npos &&
         stored.contains(std::string(name.substr(0, dot)) + ".base_layer" +
                         std::string(name.substr(dot)));
}

/// A family's model by a config, with the tensors that are stored.
struct DescribedNames {
  /// With as many layers for multi-token prediction; nullopt: as the config counts them, which a
  /// checkpoint may not hold.
  DescribedNames(MapChoice const& maps, Json const& config, Names const& stored,
                 std::optional<Index> prediction_layers)
      : model(*maps.family, maps.core, {config, "config.json", 0, prediction_layers}),
        side(model, *maps.family, options(stored)) {
    apply_family(model, side);
  }
  static SideOptions options(Names const& stored) {
    SideOptions options;
    options.has = [&stored](std::string_view name) { return has_like(stored, name); };
    return options;
  }

  Model model;
  Side side;
};

ExpectedNames compare(MapChoice const& maps, Json const& config, Names const& stored) {
  DescribedNames const described(maps, config, stored, 0);
  auto const& [model, side] = described;
  std::vector<bool> required(model.tensors().size(), false);
  for (TensorId const tensor : side.required_tensors())
    required[static_cast<std::size_t>(tensor)] = true;
  ExpectedNames result{maps.family->name, 0, {}};
  for (StoredName const& name : side.names(nullptr)) {
    auto const& tensors = side.tensors(name.entry);
    if (name.copy || std::ranges::none_of(tensors, [&](TensorId tensor) {
          return required[static_cast<std::size_t>(tensor)];
        }))
      continue;
    ++result.count;
    bool const there = holds(stored, name.name) ||
                       std::ranges::any_of(name.aliases, [&](std::string const& alias) {
                         return holds(stored, alias);
                       });
    if (there) continue;
    result.lacking.push_back(name.name);
    if (is_wrapped(stored, name.name)) ++result.wrapped;
  }
  return result;
}

std::map<std::string, RepeatedName, std::less<>> repeated(MapChoice const& maps, Json const& config,
                                                          Names const& stored) {
  DescribedNames const described(maps, config, stored, std::nullopt);
  using Weight = std::pair<std::string, std::vector<Index>>;  ///< and its layers
  std::map<Weight, std::map<std::string, bool>> holders;      ///< with StoredName::copy
  for (StoredName const& name : described.side.names(nullptr)) {
    auto const& tensors = described.side.tensors(name.entry);
    if (tensors.size() != 1 || !stored.contains(name.name)) continue;
    // A copy that a prediction layer has is of a weight without layers.
    Weight const weight(described.model.tensor(tensors.front()).name,
                        described.side.layers_of(name, tensors.front()));
    holders[weight].emplace(name.name, name.copy);
  }
  std::map<std::string, RepeatedName, std::less<>> result;
  for (auto const& [weight, names] : holders) {
    if (names.size() < 2 || std::ranges::none_of(names, [](auto const& one) { return one.second; }))
      continue;
    auto const original = std::ranges::find_if(names, [](auto const& one) { return !one.second; });
    for (auto const& [name, copy] : names)
      result.emplace(
          name, RepeatedName{weight.first,
                             copy && original != names.end() ? original->first : std::string()});
  }
  return result;
}

/// Does `work` with the maps of a config; nothing where none describes it.
void where_described(Json const& config, MapLibrary const& library,
                     std::function<void(MapChoice const&)> const& work) {
  auto const undescribed = capture([&] { work(library.choose("auto", config, Json(), true)); });
  if (undescribed && undescribed->kind() == ErrorKind::internal) throw *undescribed;
}

}  // namespace

std::map<std::string, RepeatedName, std::less<>> repeated_names(Json const& config,
                                                                Names const& stored,
                                                                MapLibrary const& library) {
  std::map<std::string, RepeatedName, std::less<>> result;
  where_described(config, library,
                  [&](MapChoice const& maps) { result = repeated(maps, config, stored); });
  return result;
}

std::optional<PredictionNames> prediction_names(Json const& config, Names const& stored,
                                                MapLibrary const& library) {
  std::optional<PredictionNames> result;
  where_described(config, library, [&](MapChoice const& maps) {
    DescribedNames const with(maps, config, stored, std::nullopt);
    DescribedNames const without(maps, config, stored, 0);
    auto const number = [&](char const* word) {
      Json const value = with.model.value(word);
      return value.integer() == nullptr ? 0 : *value.integer();
    };
    result.emplace();
    result->family = maps.family->name;
    result->layers = number("L");
    result->counted = number("M");
    result->counts = prediction_layer_changes(*maps.family, config, result->counted);
    Names others;
    for (StoredName const& name : without.side.names(nullptr)) others.insert(name.name);
    Names modules;  // parts of a quantised weight are beside it
    for (StoredName const& name : with.side.names(nullptr))
      if (!others.contains(name.name))
        modules.insert(name.name.substr(0, name.name.rfind('.') + 1));
    for (std::string const& name : stored)
      if (modules.contains(name.substr(0, name.rfind('.') + 1)) && !others.contains(name))
        result->names.insert(name);
  });
  return result;
}

std::map<std::string, DType, std::less<>> cast_names(Json const& config, Names const& stored,
                                                     MapLibrary const& library) {
  std::map<std::string, DType, std::less<>> result;
  where_described(config, library, [&](MapChoice const& maps) {
    DescribedNames const described(maps, config, stored, std::nullopt);
    for (StoredName const& name : described.side.names(nullptr))
      if (auto const cast = described.side.cast(name.entry); cast && stored.contains(name.name))
        result.emplace(name.name, *cast);
  });
  return result;
}

std::set<std::string, std::less<>> full_precision_names(Json const& config, Names const& stored,
                                                        MapLibrary const& library, bool in_f16) {
  Names result;
  for (std::string const& name : stored)
    for (std::string_view const ending :
         {"e_score_correction_bias", "expert_bias", "A_log", "dt_bias"})
      if (name.ends_with(ending)) result.insert(name);
  where_described(config, library, [&](MapChoice const& maps) {
    DescribedNames const described(maps, config, stored, std::nullopt);
    auto const is_listed = [&](TensorId const tensor) {
      return maps.keeps_f32(described.model.tensor(tensor).name, in_f16);
    };
    for (StoredName const& name : described.side.names(nullptr))
      if (described.side.cast(name.entry) ||
          std::ranges::any_of(described.side.tensors(name.entry), is_listed))
        result.insert(name.name);
  });
  std::erase_if(result, [&](std::string const& name) { return !stored.contains(name); });
  return result;
}

std::optional<ExpectedNames> expected_names(Json const& config, Names const& stored,
                                            MapLibrary const& library, std::string const& map) {
  try {
    MapChoice const maps = library.choose(map, config, Json(), true);
    return compare(maps, config, stored);
  } catch (Error const& error) {
    if (error.kind() == ErrorKind::internal) throw;
    return std::nullopt;
  }
}

std::string lacking_sentence(ExpectedNames const& expected, Names const& stored,
                             std::string const& config_name) {
  constexpr std::size_t most_shown = 3;
  std::vector<std::string> const names(stored.begin(), stored.end());
  std::string const wrapped =
      expected.wrapped == 0
          ? ""
          : fmt::format(
                ". {} of them are stored with \".base_layer\" in their names, as peft wraps "
                "a module that it adapts",
                expected.wrapped);
  return fmt::format(
      "{} of the {} tensors that {} asks for (map '{}') are missing under their names ({}): "
      "transformers would fill them with random values. The stored names are {}{}",
      expected.lacking.size(), expected.count, config_name, expected.family,
      listed(expected.lacking, most_shown), listed(names, most_shown), wrapped);
}

}  // namespace reshard
