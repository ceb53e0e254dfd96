#include "stages/plan/source/stated_args.hpp"

#include <vector>

#include "core/base/sight.hpp"
#include "core/base/text.hpp"
#include "core/formats/format.hpp"
#include "core/mapping/map_file.hpp"
#include "core/mapping/model.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr char const* folder_of_tables = "settings";

MapFile load_table(std::string const& name, std::span<fs::path const> map_folders) {
  std::vector<std::string> places;
  for (fs::path const& folder : map_folders) {
    fs::path const path = folder / folder_of_tables / (name + ".toml");
    if (sees_file(path)) return load_map_file(path, map_folders);
    places.push_back(path.string());
  }
  fail(ErrorKind::usage,
       "model maps: {} is not there, which says what the settings of such a folder mean. Install "
       "the program with its maps, or copy that file into the folder that RESHARD_MAPS names.",
       listed(places));
}

}  // namespace

Json stated_args(Checkpoint const& checkpoint, std::span<fs::path const> map_folders) {
  Json stored = args_of(checkpoint);
  if (!checkpoint.shape || describe_a_model(stored)) return stored;
  FoundShape const& shape = *checkpoint.shape;
  if (shape.facts.is_null()) return stored.is_null() ? stored : Json();
  MapFile const table = load_table(shape.table, map_folders);
  Json made(Json::Object(Model(table, table, {shape.facts, shape.settings}).evaluate(table.args)));
  return describe_a_model(made) ? made : Json();
}

std::string way_to_a_config(Checkpoint const& checkpoint) {
  std::string text = "Set source.config to the config.json of the same model";
  if (checkpoint.shape && !checkpoint.shape->origin.empty())
    text += fmt::format(" ({})", checkpoint.shape->origin);
  return text;
}

}  // namespace reshard
