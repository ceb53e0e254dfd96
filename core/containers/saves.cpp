#include "core/containers/saves.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <system_error>
#include <utility>

#include <fmt/ranges.h>

#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_digits = 18;
constexpr std::size_t most_shown = 8;
constexpr std::string_view digits = "0123456789";

/// The part of a folder's name before its number.
std::string_view prefix_of(std::string_view name) {
  return name.substr(0, name.find_last_not_of(digits) + 1);
}

/// DeepSpeed's own converter writes "global_step4_universal" next to "global_step4".
std::string_view without_universal(std::string_view name) {
  constexpr std::string_view ending = "_universal";
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : name;
}

bool has(std::vector<std::string> const& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool any_like(std::vector<std::string> const& names, std::string_view pattern) {
  return std::ranges::any_of(names,
                             [&](std::string const& name) { return matches_glob(pattern, name); });
}

bool is_before(SaveStep const& a, SaveStep const& b) {
  return a.release != b.release ? a.release : a.iteration < b.iteration;
}

/// The missing part of a save, "" if it is complete; nullopt for a folder of neither Megatron nor
/// PyTorch.
std::optional<std::string> lacks(fs::path const& folder) {
  std::vector<std::string> const names = member_names(folder);
  if (has(names, ".metadata")) return "";
  if (any_like(names, "*.distcp") || has(names, "metadata.json") || has(names, "common.pt"))
    return "has no .metadata, which is written last";
  bool any = false;
  for (std::string const& name : names) {
    if (!name.starts_with("mp_rank_") || !sees_folder(folder / name)) continue;
    any = true;
    std::vector<std::string> const inside = member_names(folder / name);
    if (!has(inside, "model_optim_rng.pt") && !has(inside, "model_rng.pt") &&
        !has(inside, "distrib_optim.pt") && !has(inside, "optim.pt"))
      return fmt::format("{} has no model_optim_rng.pt", name);
  }
  return any ? std::optional<std::string>("") : std::nullopt;
}

/// Links in the root that lead to a save, by their names.
std::vector<std::string> links_to(fs::path const& root, std::vector<std::string> const& names,
                                  std::string const& save) {
  std::vector<std::string> found;
  for (std::string const& name : names) {
    if (step_of_folder(name)) continue;
    std::string const leads = seen("link", root / name, [&] {
      std::error_code error;
      return fs::read_symlink(root / name, error).filename().string();
    });
    if (leads == save) found.push_back(name);
  }
  return found;
}

/// A clause with the file that names the save: the tracker, or DeepSpeed's `latest`.
std::string namer(fs::path const& root) {
  for (std::string_view const name : {tracker_name, std::string_view("latest")})
    if (sees_file(root / name)) return fmt::format(", which {} names,", name);
  return ",";
}

/// Where no file names the save that is taken, of several: "" for others.
std::string unnamed_note(fs::path const& root, std::string const& taken, std::string_view prefix,
                         std::vector<std::string> const& names) {
  auto const saves = std::ranges::count_if(names, [&](std::string const& name) {
    return prefix_of(name) == prefix && step_of_folder(name) && sees_folder(root / name);
  });
  if (saves < 2 || namer(root) != ",") return "";
  return fmt::format("{}: {} is taken, the newest of {} saves, because no file names one",
                     root.string(), taken, saves);
}

}  // namespace

std::optional<SaveStep> step_of_folder(std::string_view name) {
  if (name == release_name) return SaveStep{.release = true};
  std::string_view const number = name.substr(prefix_of(name).size());
  if (number.empty() || number.size() > most_digits) return std::nullopt;
  SaveStep step;
  std::from_chars(number.data(), number.data() + number.size(), step.iteration);
  return step;
}

bool is_unfinished_name(std::string_view name) {
  return name.starts_with('.') || name.starts_with("tmp-") || name.ends_with(".tmp") ||
         name.ends_with(".part");
}

std::vector<ListedSave> saves_of_run(fs::path const& root) {
  std::vector<ListedSave> saves;
  for (std::string const& name : member_names(root)) {
    auto const step = step_of_folder(name);
    if (!step || !sees_folder(root / name)) continue;
    if (auto what = lacks(root / name)) saves.push_back({name, *step, std::move(*what)});
  }
  std::ranges::stable_sort(
      saves, [](ListedSave const& a, ListedSave const& b) { return is_before(a.step, b.step); });
  return saves;
}

std::string listed_saves(std::vector<ListedSave> const& saves) {
  if (saves.empty()) return "none";
  std::vector<std::string> texts;
  for (auto save = saves.rbegin(); save != saves.rend(); ++save)  // the newest may be wanted
    texts.push_back(save->lacks.empty() ? save->name
                                        : fmt::format("{} ({})", save->name, save->lacks));
  return listed(texts, most_shown);
}

std::string save_below(fs::path const& root, fs::path const& folder) {
  fs::path const below =
      normal_path(fs::absolute(folder)).lexically_relative(normal_path(fs::absolute(root)));
  if (below.empty() || *below.begin() == "." || *below.begin() == "..") return "";
  std::string const name = below.begin()->string();
  if (name == accelerate_weights) return "";
  return step_of_folder(without_universal(name)) ? name : "";
}

std::string newer_saves_note(fs::path const& given, fs::path const& folder) {
  fs::path const root = normal_path(given);
  std::string const taken = save_below(root, folder);
  if (taken.empty()) return "";
  SaveStep const step = *step_of_folder(without_universal(taken));
  std::string_view const prefix = step.release ? "iter_" : prefix_of(without_universal(taken));
  std::vector<std::string> const names = member_names(root);
  std::vector<std::pair<std::int64_t, std::string>> newer;
  for (std::string const& name : names) {
    std::string_view const numbered = without_universal(name);
    auto const its = step_of_folder(numbered);
    if (its && !its->release && prefix_of(numbered) == prefix && is_before(step, *its) &&
        sees_folder(root / name))
      newer.emplace_back(its->iteration, name);
  }
  if (newer.empty()) return unnamed_note(root, taken, prefix, names);
  std::ranges::sort(newer, std::greater());
  std::vector<std::string> texts;
  for (auto const& [number, name] : newer) {
    std::vector<std::string> notes = links_to(root, names, name);
    for (std::string& link : notes) link = fmt::format("the link '{}' leads to it", link);
    if (auto const what = lacks(root / name); what && !what->empty()) notes.push_back(*what);
    texts.push_back(notes.empty() ? name : fmt::format("{} ({})", name, fmt::join(notes, "; ")));
    if (texts.size() > most_shown) break;
  }
  return fmt::format("{}: {} is taken{} and {} there: {}. Name one by its path to take it",
                     root.string(), taken, namer(root),
                     agreeing(newer.size(), "a newer one is", "newer ones are"),
                     listed(texts, most_shown));
}

}  // namespace reshard
