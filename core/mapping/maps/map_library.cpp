#include "core/mapping/maps/map_library.hpp"

#include <algorithm>

#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/model.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t largest_map_bytes = 4U << 20;
constexpr char const* folder_of_tables = "settings";
constexpr char const* core_map = "mcore";
constexpr char const* quant_map = "quant";
constexpr char const* adapter_map = "adapters";
constexpr char const* args_map = "args";
constexpr char const* cache_map = "cache_scales";

bool is_family(fs::path const& file) {
  return file.stem() != core_map && file.stem() != quant_map && file.stem() != adapter_map &&
         file.stem() != args_map && file.stem() != cache_map;
}

std::vector<std::string> map_names(fs::path const& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto const& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().filename().string());
  return names;
}

std::vector<fs::path> map_files(std::vector<fs::path> const& folders) {
  std::vector<fs::path> files;
  for (fs::path const& folder : folders) {
    for (std::string const& name : seen_names("maps in", folder, [&] { return map_names(folder); }))
      files.push_back(folder / name);
    if (!files.empty()) break;  // the first folder that has maps
  }
  if (files.empty()) {
    std::vector<std::string> const names(folders.begin(), folders.end());
    fail(
        ErrorKind::usage,
        "model maps: no *.toml in {}. Install the program with its maps, or set RESHARD_MAPS to their folder.",
        listed(names));
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// A map that jobs can name: of a family, or of names alone; not what others inherit from.
bool can_be_named(fs::path const& file) {
  try {
    MapFile const map = load_map_file(file);
    return !map.model_types.empty() || map.axes.empty();
  } catch (Error const&) {
    return true;  // naming it says what is wrong with it
  }
}

std::vector<std::string> names_of(std::vector<fs::path> const& files) {
  std::vector<std::string> names;
  for (fs::path const& file : files)
    if (is_family(file) && can_be_named(file)) names.push_back(file.stem().string());
  return names;
}

MapFile find_named(std::string const& name, std::vector<fs::path> const& files,
                   std::vector<fs::path> const& folders, std::string_view key = "[model] map") {
  for (fs::path const& file : files)
    if (file.stem() == name) return load_map_file(file, folders);
  if (name.find('/') != std::string::npos || name.ends_with(".toml")) {
    if (!sees_file(name))
      fail(ErrorKind::usage, "{} = \"{}\": there is no such file. Check the path.", key, name);
    return load_map_file(name, folders);
  }
  std::vector<std::string> const known = names_of(files);
  std::string const near = nearest(name, known);
  fail(ErrorKind::usage,
       "{} = \"{}\": there is no such map.{} Known: {}. A path of your own file works too.", key,
       name, near.empty() ? "" : " Did you mean '" + near + "'?", listed(known, 40));
}

bool matches(Expression const& condition, Json const& facts) {
  if (condition.empty() || facts.is_null()) return false;
  ExpressionScope scope;
  scope.absent_spreads = true;
  scope.key = [&facts](std::string_view key) { return std::optional<Json>(fact(facts, key)); };
  return condition.holds(scope);
}

/// Whether a map's own text holds this type as a string, anywhere. The texts of many maps are
/// looked through much faster than they are read as maps.
bool may_name(fs::path const& file, std::string const& model_type) {
  std::string const text = read_text_file(file, largest_map_bytes);
  for (std::size_t at = text.find(model_type); at != std::string::npos;
       at = text.find(model_type, at + 1)) {
    std::size_t const end = at + model_type.size();
    auto const is_quote = [](char one) { return one == '"' || one == '\''; };
    if (at > 0 && is_quote(text[at - 1]) && end < text.size() && is_quote(text[end])) return true;
  }
  return false;
}

std::optional<MapFile> find_family(std::vector<fs::path> const& files,
                                   std::vector<fs::path> const& folders, Json const& config,
                                   Json const& args) {
  Json const* type = config.find("model_type");
  std::vector<MapFile> by_args;
  std::optional<MapFile> usual;  // of this type, without a condition
  for (fs::path const& file : files) {
    if (!is_family(file)) continue;
    bool const by_type = type != nullptr && type->text() != nullptr;
    if (by_type && !may_name(file, *type->text())) continue;
    MapFile map = load_map_file(file, folders);
    if (map.axes.empty()) continue;  // names alone
    if (by_type) {
      if (std::ranges::count(map.model_types, *type->text()) == 0) continue;
      if (matches(map.match_config, config)) return map;
      if (map.match_config.empty() && !usual) usual = std::move(map);
      continue;
    }
    if (matches_args(map, args)) by_args.push_back(std::move(map));
  }
  if (usual) return usual;
  if (by_args.size() > 1) {
    std::vector<std::string> names;
    for (MapFile const& map : by_args) names.push_back(map.name);
    fail(ErrorKind::usage,
         "[model] map = \"auto\": the checkpoint's args fit several families: {}. Name one.",
         listed(names));
  }
  return by_args.empty() ? std::nullopt : std::optional<MapFile>(std::move(by_args.front()));
}

/// Every model_type of the families.
std::vector<std::string> known_types(std::vector<fs::path> const& files,
                                     std::vector<fs::path> const& folders) {
  std::vector<std::string> types;
  for (fs::path const& file : files)
    if (is_family(file)) {
      MapFile const map = load_map_file(file, folders);
      types.insert(types.end(), map.model_types.begin(), map.model_types.end());
    }
  return types;
}

}  // namespace

bool matches_args(MapFile const& map, Json const& args) { return matches(map.match_args, args); }

MapChoice MapLibrary::choose(std::string const& map, Json const& config, Json const& args,
                             bool need_family, std::string const& origin) const {
  std::vector<fs::path> const files = map_files(folders_);
  MapChoice choice{find_named(core_map, files, folders_), std::nullopt};
  if (map != "auto") {
    if (map != core_map) choice.family = find_named(map, files, folders_);
  } else if (need_family) {
    choice.family = find_family(files, folders_, config, args);
  }
  if (choice.family || !need_family) return choice;
  Json const* type = config.find("model_type");
  if (type == nullptr || type->text() == nullptr)
    fail(ErrorKind::usage,
         "[model] map = \"auto\": {}. Set source.config to the config.json of the same model{}, or "
         "name the family's map with model.map.",
         config.is_null() ? "no map's condition holds for what the checkpoint's args describe"
                          : "config.json has no model_type",
         origin.empty() ? "" : " (" + origin + ")");
  std::string near = nearest(*type->text(), known_types(files, folders_));
  fail(ErrorKind::usage,
       "[model] map = \"auto\": no map describes model_type '{}' of config.json.{} Known families: "
       "{}. Name one with model.map, or begin one with reshard check-map --draft FOLDER "
       "(docs/adding-a-model.md).",
       *type->text(), near.empty() ? "" : " Did you mean '" + near + "'?",
       listed(names_of(files), 40));
}

MapFile MapLibrary::named(std::string_view key, std::string const& map) const {
  return find_named(map, map_files(folders_), folders_, key);
}

void check_names_of(std::string_view key, MapFile const& names, MapFile const& family) {
  auto const& known = names.model_types;
  auto const fits = [&](std::string const& type) { return std::ranges::count(known, type) > 0; };
  if (known.empty() || std::ranges::any_of(family.model_types, fits)) return;
  fail(ErrorKind::usage,
       "{} = \"{}\": it has names for models of type {}, and the model's family is {} ({}). {}",
       key, fs::path(names.name).stem().string(), listed(known, 6),
       fs::path(family.name).stem().string(), listed(family.model_types, 6),
       key.ends_with("format") ? "Choose huggingface." : "Name the map of this family.");
}

std::vector<MapFile> MapLibrary::families() const {
  std::vector<MapFile> maps;
  for (fs::path const& file : map_files(folders_)) {
    if (!is_family(file)) continue;
    try {
      MapFile map = load_map_file(file, folders_);
      if (!map.model_types.empty() && !map.axes.empty()) maps.push_back(std::move(map));
    } catch (Error const& error) {
      if (error.kind() != ErrorKind::usage) throw;  // naming it says what is wrong with it
    }
  }
  return maps;
}

MapFile MapLibrary::settings(std::string const& name) const {
  std::vector<std::string> places;
  for (fs::path const& folder : folders_) {
    fs::path const path = folder / folder_of_tables / (name + ".toml");
    if (sees_file(path)) return load_map_file(path, folders_);
    places.push_back(path.string());
  }
  fail(ErrorKind::usage,
       "model maps: {} is missing, which describes the settings of such a folder. Install the "
       "program with its maps, or copy that file into the folder that RESHARD_MAPS names.",
       listed(places));
}

std::vector<std::string> MapLibrary::mesh_axes() const {
  return reshard::mesh_axes(find_named(core_map, map_files(folders_), folders_));
}

}  // namespace reshard
