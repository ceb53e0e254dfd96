#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/mapping/maps/map_file.hpp"
#include "core/mapping/maps/map_removal.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t largest_map_bytes = 4U << 20;

fs::path base_path(std::string const& base, fs::path const& folder,
                   std::span<fs::path const> folders, std::string const& map) {
  fs::path const beside = folder / (base + ".toml");
  if (sees_file(beside)) return beside;
  for (fs::path const& other : folders)
    if (fs::path const path = other / (base + ".toml"); sees_file(path)) return path;
  fail(
      ErrorKind::usage,
      "{}: base = \"{}\": there is no {}.toml beside this map or in the map folder. Correct the name.",
      map, base, base);
}

MapFile load(fs::path const& path, std::span<fs::path const> folders, std::vector<fs::path>& open) {
  if (std::find(open.begin(), open.end(), path) != open.end())
    fail(ErrorKind::usage, "{}: inherits from itself by way of {}. Break the cycle of `base`.",
         path.filename().string(), open.back().filename().string());
  open.push_back(path);
  MapFile map = parse_map_file(read_text_file(path, largest_map_bytes), path.filename().string());
  std::optional<MapFile> bases;
  for (std::string const& base : map.bases) {
    MapFile next = load(base_path(base, path.parent_path(), folders, map.name), folders, open);
    bases = bases ? inherited(std::move(*bases), std::move(next)) : std::move(next);
  }
  open.pop_back();
  map.bases.clear();
  return bases ? inherited(std::move(*bases), std::move(map)) : map;
}

}  // namespace

MapFile load_map_file(std::filesystem::path const& path,
                      std::span<std::filesystem::path const> folders) {
  std::vector<fs::path> open;
  return without_removed(load(path, folders, open));
}

MapFile without_removed(MapFile map) {
  std::erase_if(map.stored, [](MapName const& name) { return name.entries.empty(); });
  for (auto* list : {&map.args, &map.config, &map.defaults})
    std::erase_if(*list, [](NamedExpression const& item) { return item.expression.empty(); });
  return map;
}

}  // namespace reshard
