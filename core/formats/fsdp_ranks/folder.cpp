#include "core/formats/fsdp_ranks/folder.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/text.hpp"

namespace reshard::fsdp_ranks {
namespace {

namespace fs = std::filesystem;
using Kind = RankName::Kind;

constexpr std::uint64_t largest_config_bytes = 65536;
constexpr std::size_t most_shown = 8;
/// Folders of a save, of one kind each, as lmms-engine has them.
constexpr std::array<std::string_view, 3> folders_of_kinds = {"pytorch_model_fsdp_0", "optimizer",
                                                              "extra_state"};

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// As a writer spells it: "2", and not "02".
std::optional<Index> take_number(std::string_view& text) {
  if (text.starts_with('0') && text.size() > 1 && text[1] >= '0' && text[1] <= '9')
    return std::nullopt;
  Index number = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// Files of one kind and world, by rank.
using RankFiles = std::map<Index, fs::path>;
using FoundFiles = std::map<std::pair<Kind, Index>, RankFiles>;

void add_files(fs::path const& folder, FoundFiles& found) {
  for (std::string const& name : member_names(folder))
    if (auto const rank = parse_rank_name(name))
      found[{rank->kind, rank->world}].emplace(rank->rank, folder / name);
}

FoundFiles files_of_save(fs::path const& path) {
  FoundFiles found;
  add_files(path, found);
  for (std::string_view const below : folders_of_kinds)
    if (sees_folder(path / below)) add_files(path / below, found);
  return found;
}

std::string_view word_of(Kind kind) {
  return kind == Kind::model ? "model" : kind == Kind::optimizer ? "optimizer" : "extra state";
}

/// One file of each rank, from 0 on.
std::vector<fs::path> by_rank(fs::path const& path, Kind kind, Index world,
                              RankFiles const& files) {
  std::vector<std::string> missing;
  for (Index rank = 0; rank < world && missing.size() <= most_shown; ++rank)
    if (!files.contains(rank)) missing.push_back(std::to_string(rank));
  std::vector<fs::path> result;
  for (auto const& [rank, file] : files) {
    if (rank >= world)
      fail(
          ErrorKind::source,
          "{}: is of rank {} by its name, in a world of {}, whose last rank is {}. It was renamed: "
          "give it its name.",
          file.string(), rank, world, world - 1);
    result.push_back(file);
  }
  if (!missing.empty())
    fail(
        ErrorKind::source,
        "{}: the {} file of rank {} of {} is missing; {} there. The save was interrupted, or files "
        "lie on other nodes: bring those of all ranks into one folder, or choose another save.",
        path.string(), word_of(kind), listed(missing, most_shown), world,
        files.size() == 1 ? "one is" : fmt::format("{} are", files.size()));
  return result;
}

/// The number of ranks by the names of files of a kind; 0 where there are none.
Index world_of(fs::path const& path, Kind kind, FoundFiles const& found) {
  Index world = 0;
  for (auto const& [key, files] : found) {
    if (key.first != kind) continue;
    if (world != 0)
      fail(
          ErrorKind::source,
          "{}: its files of the {} are of worlds of {} and of {} ranks: of two saves. Move those of one "
          "into a folder of their own.",
          path.string(), word_of(kind), world, key.second);
    world = key.second;
  }
  return world;
}

/// Reads fsdp_config.json; damage in it is an Error.
void read_config(Folder& folder) {
  if (!sees_file(folder.path / config_name)) return;
  fs::path const path = readable_member(folder.path, config_name);
  Json const config = parse_json(read_text_file(path, largest_config_bytes), path.string());
  auto const number = [&](std::string_view key) -> Index {
    Json const* value = config.find(key);
    return value != nullptr && value->integer() != nullptr ? *value->integer() : 0;
  };
  folder.fsdp_version = number("FSDP_version");
  Index const world = number("world_size");
  if (world != 0 && world != folder.world)
    fail(ErrorKind::source,
         "{}: world_size is {}, and the files are of a world of {}. They are of two saves: restore "
         "those of one.",
         path.string(), world, folder.world);
}

}  // namespace

std::optional<RankName> parse_rank_name(std::string_view name) {
  RankName result;
  if (take(name, "model_"))
    result.kind = Kind::model;
  else if (take(name, "optim_") || take(name, "optimizer_"))
    result.kind = Kind::optimizer;
  else if (take(name, "extra_state_"))
    result.kind = Kind::extra;
  else
    return std::nullopt;
  if (!take(name, "world_size_")) return std::nullopt;
  auto const world = take_number(name);
  if (!world || *world == 0 || !take(name, "_rank_")) return std::nullopt;
  auto const rank = take_number(name);
  if (!rank || name != ".pt") return std::nullopt;
  result.world = *world;
  result.rank = *rank;
  return result;
}

bool looks_like_rank_files(fs::path const& path) {
  if (!sees_folder(path)) return false;
  auto const holds = [](fs::path const& folder) {
    return std::ranges::any_of(member_names(folder), [](std::string const& name) {
      auto const rank = parse_rank_name(name);
      return rank && rank->kind != Kind::extra;
    });
  };
  if (holds(path)) return true;
  fs::path const below = path / folders_of_kinds.front();
  return sees_folder(below) && holds(below);
}

Folder open_folder(fs::path const& path) {
  FoundFiles const found = files_of_save(path);
  Folder folder;
  folder.path = path;
  folder.world = world_of(path, Kind::model, found);
  Index const optimizers = world_of(path, Kind::optimizer, found);
  if (folder.world == 0)
    fail(ErrorKind::source,
         "{}: holds optimizer state of {} and no model_world_size_*.pt, which hold the weights. "
         "Restore them, or choose another save.",
         path.string(), counted(optimizers, "rank"));
  if (optimizers != 0 && optimizers != folder.world)
    fail(ErrorKind::source,
         "{}: the model is of a world of {} and the optimizer of one of {}. They are of two saves: "
         "restore the files of one.",
         path.string(), folder.world, optimizers);
  folder.models = by_rank(path, Kind::model, folder.world, found.at({Kind::model, folder.world}));
  if (optimizers != 0)
    folder.optimizers =
        by_rank(path, Kind::optimizer, optimizers, found.at({Kind::optimizer, optimizers}));
  for (auto const& [key, files] : found)
    if (key.first == Kind::extra && !files.empty() && folder.extra.empty())
      folder.extra = files.begin()->second.lexically_relative(path).string();
  read_config(folder);
  return folder;
}

}  // namespace reshard::fsdp_ranks
