#include "core/formats/run/run_saves.hpp"

#include <algorithm>
#include <array>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/saves.hpp"
#include "core/formats/format.hpp"
#include "core/formats/shapes.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Megatron and what builds on it; DeepSpeed, and its universal checkpoints; SkyRL.
constexpr std::array<std::string_view, 4> namers = {tracker_name, "latest", "latest_universal",
                                                    "latest_ckpt_global_step.txt"};

/// Patterns of the names that programs give to the folder of a step.
constexpr std::array<std::string_view, 7> step_words = {
    "iter_*", "step-*", "step_*", "checkpoint-*", "checkpoint_*", "global_step*", "release"};

/// "latest" and the like: the save is listed under its own name.
bool links_to_neighbour(fs::path const& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return false;
  fs::path const real = resolved_path(path, error);
  return !error && real.parent_path() == resolved_path(path.parent_path(), error);
}

/// Names that are those of weights, complete or not, and that no run has beside its saves.
constexpr std::array<std::string_view, 11> signs = {".metadata",
                                                    "*.distcp",
                                                    "common.pt",
                                                    "mp_rank_*",
                                                    "*.h5",
                                                    "*.hdf5",
                                                    "pytorch_model*.bin",
                                                    "*.safetensors",
                                                    "*.safetensors.index.json",
                                                    "model_world_size_*.pt",
                                                    "*zero_pp_rank_*"};

bool are_of_one_save(std::vector<std::string> const& names) {
  return std::ranges::any_of(names, [](std::string const& name) {
    return name == accelerate_weights || std::ranges::any_of(signs, [&](std::string_view pattern) {
             return matches_glob(pattern, name);
           });
  });
}

bool is_namer(std::string const& name) { return std::ranges::find(namers, name) != namers.end(); }

bool holds_save(fs::path const& folder) {
  if (is_name_of_save(folder.filename().string())) return true;
  bool found = false;
  // A folder that cannot be listed holds nothing that could be read.
  (void)capture([&] {
    found =
        !recognise(folder).empty() || folder_of_weights(folder) != folder || is_one_save(folder);
  });
  return found;
}

/// Signs of a save that has not come to its end, by names alone.
std::string missing_mark(fs::path const& folder) {
  for (Format const* format : recognise(folder))
    if (std::string mark = format->why_incomplete(folder); !mark.empty()) return mark;
  return "";
}

}  // namespace

bool is_name_of_save(std::string_view name) {
  return step_of_folder(name) && std::ranges::any_of(step_words, [&](std::string_view pattern) {
           return matches_glob(pattern, name);
         });
}

bool is_one_save(fs::path const& path) { return are_of_one_save(member_names(path)); }

std::vector<std::string> saves_below(fs::path const& run) {
  std::error_code error;
  std::vector<std::string> found;
  fs::directory_iterator it(run, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    std::string const name = it->path().filename().string();
    if (!is_unfinished_name(name) && it->is_directory(ignored) && !links_to_neighbour(it->path()) &&
        holds_save(it->path()))
      found.push_back(name);
  }
  if (error)
    fail(ErrorKind::source, "{}: cannot be listed: {}. Check the path and its permissions.",
         run.string(), error.message());
  return found;
}

std::string why_incomplete(fs::path const& save) {
  std::string reason;
  auto const error = capture([&] {
    if (fs::is_directory(save) && fs::is_empty(save)) reason = "is empty";
    if (!reason.empty()) return;
    fs::path const folder = folder_of_weights(save);
    reason = missing_mark(folder);
    if (!reason.empty()) return;
    Inspection const found = choose_format(folder).describe(folder, {});
    if (found.sound) return;
    reason =
        fmt::format("is incomplete: {}", found.mismatches.empty() ? "" : found.mismatches.front());
  });
  return error ? "is incomplete: " + error->sentence() : reason;
}

std::vector<SaveNamer> save_namers(fs::path const& run) {
  std::vector<SaveNamer> found;
  for (std::string_view const name : namers) {
    if (!sees_file(run / name)) continue;
    std::string text;
    (void)capture(
        [&] { text = read_text_file(readable_member(run, name), largest_tracker_bytes); });
    constexpr std::string_view blank = " \t\r\n\v\f";
    std::size_t const begin = std::min(text.find_first_not_of(blank), text.size());
    found.push_back(
        {std::string(name), text.substr(begin, text.find_last_not_of(blank) + 1 - begin)});
  }
  return found;
}

fs::path newest_save(fs::path const& path) {
  if (!sees_folder(path)) return path;
  std::vector<std::string> const names = member_names(path);
  std::vector<std::string> saves;
  std::ranges::copy_if(names, std::back_inserter(saves), is_name_of_save);
  if (saves.empty() || are_of_one_save(names)) return path;
  if (std::ranges::any_of(names, is_namer)) return path;
  if (saves.size() == 1 && !recognise(path).empty()) return path;
  std::string const chosen = seen("newest complete save of", path, [&] {
    SightScope const alone(nullptr);  // one rank asks
    std::ranges::sort(saves, std::ranges::greater(), [](std::string const& name) {
      SaveStep const step = *step_of_folder(name);
      return step.release ? -1 : step.iteration;
    });
    for (std::string const& name : saves)
      if (sees_folder(path / name) && why_incomplete(path / name).empty()) return name;
    return std::string();
  });
  return chosen.empty() ? path : path / chosen;
}

}  // namespace reshard
