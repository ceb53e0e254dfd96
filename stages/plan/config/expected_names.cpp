#include "stages/plan/config/expected_names.hpp"

#include <algorithm>

#include "core/base/text.hpp"
#include "core/mapping/side.hpp"
#include "stages/plan/source/map_choice.hpp"

namespace reshard {
namespace {

using Names = std::set<std::string, std::less<>>;

bool has_like(Names const& stored, std::string_view name) {
  if (name.find_first_of("*?") == std::string_view::npos) return stored.contains(name);
  return std::ranges::any_of(stored,
                             [&](std::string const& known) { return matches_glob(name, known); });
}

/// As it is, or in parts: "….qweight" and "…_scale" for "….weight".
bool holds(Names const& stored, std::string_view name) {
  constexpr std::string_view usual = "weight";
  std::string_view const start =
      name.ends_with(usual) ? name.substr(0, name.size() - usual.size()) : name;
  auto const at = stored.lower_bound(start);
  return at != stored.end() && at->starts_with(start);
}

ExpectedNames compare(MapChoice const& maps, Json const& config, Names const& stored) {
  Model model(*maps.family, maps.core, {config, "config.json", 0, 0});
  SideOptions options;
  options.has = [&stored](std::string_view name) { return has_like(stored, name); };
  Side const side(model, *maps.family, std::move(options));
  apply_family(model, side);
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
    if (!there) result.lacking.push_back(name.name);
  }
  return result;
}

}  // namespace

std::optional<ExpectedNames> expected_names(Json const& config, Names const& stored,
                                            std::vector<std::filesystem::path> const& map_folders) {
  try {
    MapChoice const maps = choose_maps("auto", map_folders, config, Json(), true);
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
  return fmt::format(
      "{} of the {} tensors that {} asks for (map '{}') are missing under their names ({}): "
      "transformers would fill them with random values. The stored names are {}",
      expected.lacking.size(), expected.count, config_name, expected.family,
      listed(expected.lacking, most_shown), listed(names, most_shown));
}

}  // namespace reshard
