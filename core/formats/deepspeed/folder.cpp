#include "core/formats/deepspeed/folder.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <system_error>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/files/tree.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"

namespace reshard::deepspeed {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t largest_latest_bytes = 4096;
constexpr std::string_view model_suffix = "model_states.pt";
constexpr std::string_view optimizer_suffix = "optim_states.pt";

/// The names in a folder, sorted; folders with a '/' behind.
std::vector<std::string> entries_of(fs::path const& path) {
  std::vector<std::string> names = seen_names("entries of", path, [&] {
    std::vector<std::string> found;
    std::error_code error;
    for (TreeEntry const& entry : known_listing_of(path, error)) {
      std::error_code unknown;
      bool const is_folder =
          entry.type == fs::file_type::directory ||
          (entry.type == fs::file_type::symlink && fs::is_directory(entry.path, unknown));
      found.push_back(entry.path.filename().string() + (is_folder ? "/" : ""));
    }
    if (error)
      fail(ErrorKind::source, "{}: cannot be listed: {}. Check the path and its permissions.",
           path.string(), error.message());
    return found;
  });
  std::ranges::sort(names);
  return names;
}

bool has(std::vector<std::string> const& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string first_like(std::vector<std::string> const& names, std::string_view pattern) {
  auto const found = std::ranges::find_if(
      names, [&](std::string const& name) { return matches_glob(pattern, name); });
  return found == names.end() ? "" : *found;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// The folder of a save under DeepSpeed's own tag, "global_step100/"; "" for none.
std::string first_step(std::vector<std::string> const& names) {
  constexpr std::string_view tag = "global_step";
  auto const found = std::ranges::find_if(names, [&](std::string const& name) {
    return name.starts_with(tag) && name.ends_with('/') && name.size() > tag.size() + 1 &&
           name[tag.size()] >= '0' && name[tag.size()] <= '9';
  });
  return found == names.end() ? "" : *found;
}

bool has_rank_files(std::vector<std::string> const& names) {
  auto const of_rank = [](std::string const& name) { return parse_rank_name(name).has_value(); };
  return std::ranges::any_of(names, of_rank) ||
         !first_like(names, "layer_*-model_*states.pt").empty();
}

bool is_universal(std::vector<std::string> const& names) {
  return has(names, std::string(universal_folder_name) + "/") && has_rank_files(names);
}

/// The file of each rank, from 0 on without a gap.
std::vector<std::string> by_rank(std::map<int, std::string> const& files, fs::path const& folder) {
  std::vector<std::string> result;
  for (auto const& [rank, name] : files) {
    if (rank != std::ssize(result))
      fail(ErrorKind::source,
           "{}: has the file of rank {} ('{}'), and that of rank {} is missing. The save was "
           "interrupted, or files were lost or lie on other nodes: bring those of all ranks into "
           "one folder, or choose another save.",
           folder.string(), rank, name, result.size());
    result.push_back(name);
  }
  return result;
}

void refuse_model_parallel(fs::path const& folder, std::vector<std::string> const& names) {
  for (std::string_view const pattern : {"layer_*_expert_*_states.pt", "expp_rank_*_states.pt"})
    if (std::string const file = first_like(names, pattern); !file.empty())
      fail(
          ErrorKind::source,
          "{}: '{}' holds experts of DeepSpeed-MoE, which this version cannot read. Save the model "
          "as a Hugging Face folder from the training program, and convert that.",
          folder.string(), file);
  if (std::string const file = first_like(names, "layer_*-model_*states.pt"); !file.empty())
    fail(ErrorKind::source,
         "{}: '{}' is a layer of a pipeline (Megatron-DeepSpeed), whose ranks this version cannot "
         "join. Run DeepSpeed's own deepspeed/checkpoint/ds_to_universal.py, and convert the "
         "folder that it writes.",
         folder.string(), file);
}

void add_rank_files(Folder& found, std::vector<std::string> const& names) {
  refuse_model_parallel(found.folder, names);
  std::map<int, std::string> models;
  std::map<int, std::string> split_models;
  std::map<int, std::string> optimizers;
  for (std::string const& name : names) {
    auto const rank = parse_rank_name(name);
    if (!rank) continue;
    if (rank->model > 0 && !found.universal)
      fail(
          ErrorKind::source,
          "{}: '{}' is of model-parallel rank {}: this version joins data-parallel ranks only. Run "
          "DeepSpeed's own deepspeed/checkpoint/ds_to_universal.py, and convert the folder that it "
          "writes.",
          found.folder.string(), name, rank->model);
    if (rank->model > 0) continue;
    auto& files = rank->optimizer ? optimizers : rank->rank ? split_models : models;
    if (!files.emplace(rank->rank.value_or(0), name).second)
      fail(ErrorKind::source,
           "{}: '{}' and '{}' are both of rank {}. The folder holds two saves: remove the files of "
           "one.",
           found.folder.string(), files[rank->rank.value_or(0)], name, rank->rank.value_or(0));
  }
  if (models.empty() && split_models.empty())
    fail(ErrorKind::source,
         "{}: has no {} and no {}. The save was interrupted, or files are missing: restore them.",
         found.folder.string(), model_states_name, split_model_states_name);
  found.split = models.empty();
  found.model_files = by_rank(found.split ? split_models : models, found.folder);
  if (!found.universal) found.optimizer_files = by_rank(optimizers, found.folder);
  // Frozen parameters lie in those of all ranks of stage 3.
  if (found.universal && !found.split) found.model_files.resize(1);
  if (found.split && !found.universal && found.model_files.size() != found.optimizer_files.size())
    fail(ErrorKind::source,
         "{}: has {} of model states and {} of optimizer states: stage 3 has one of each "
         "for every rank, and the weights are in those of the optimizer. Restore the missing "
         "files.",
         found.folder.string(), counted(found.model_files.size(), "file"),
         found.optimizer_files.size());
}

void add_parameters(Folder& found) {
  fs::path const zero = found.folder / universal_folder_name;
  for (std::string const& name : entries_of(zero)) {
    if (!name.ends_with('/')) continue;
    Folder::Parameter parameter{name.substr(0, name.size() - 1), {}};
    for (std::string const& file : entries_of(zero / parameter.name))
      if (file.ends_with(".pt")) parameter.files.push_back(file);
    found.parameters.push_back(std::move(parameter));
  }
  if (found.parameters.empty())
    fail(ErrorKind::source,
         "{}: holds no folder of a parameter. The conversion to a universal checkpoint did not "
         "complete: repeat it.",
         zero.string());
}

/// The folder that `latest` names.
fs::path tagged(fs::path const& root, std::string_view name) {
  std::string tag = read_text_file(root / name, largest_latest_bytes);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' '))
    tag.pop_back();
  if (tag.empty() || tag.find('/') != std::string::npos || tag == "..")
    fail(ErrorKind::source, "{}: '{}' names no folder beside it. Name the folder of one save.",
         (root / name).string(), without_controls(tag));
  if (!sees_folder(root / tag))
    fail(ErrorKind::source,
         "{}: names '{}', and there is no such folder. The save was moved or removed: name the "
         "folder of another one.",
         (root / name).string(), without_controls(tag));
  return root / tag;
}

fs::path folder_in(fs::path const& root, std::vector<std::string> const& names) {
  if (has_rank_files(names)) return root;
  for (std::string_view const name : {latest_name, latest_universal_name})
    if (has(names, name)) return tagged(root, name);
  std::string const step = first_step(names);
  fail(ErrorKind::source,
       "{}: has no '{}', which names the save to load and is written last, unless save_latest was "
       "off. Name the folder of one save{}.",
       root.string(), latest_name,
       step.empty() ? "" : ", such as " + (root / step.substr(0, step.size() - 1)).string());
}

}  // namespace

std::optional<RankName> parse_rank_name(std::string_view name) {
  RankName result;
  (void)take(name, "bf16_");
  if (take(name, "zero_pp_rank_")) {
    result.rank = take_number(name);
    if (!result.rank || !take(name, "_")) return std::nullopt;
  }
  if (!take(name, "mp_rank_")) return std::nullopt;
  auto const model = take_number(name);
  if (!model) return std::nullopt;
  result.model = *model;
  (void)take(name, "_");  // before 2021: mp_rank_00optim_states.pt
  result.optimizer = name == optimizer_suffix;
  if (!result.optimizer && name != model_suffix) return std::nullopt;
  return result;
}

bool looks_like_deepspeed(fs::path const& path) {
  if (!sees_folder(path)) return false;
  std::vector<std::string> const names = entries_of(path);
  if (has_rank_files(names)) return true;
  if (has(names, latest_universal_name)) return true;
  bool const step = !first_step(names).empty();
  if (!has(names, latest_name)) return step;
  return step || has(names, "zero_to_fp32.py");
}

Folder open_folder(fs::path const& path) {
  Folder found;
  found.root = path;
  std::vector<std::string> names = entries_of(path);
  found.folder = folder_in(path, names);
  if (found.folder != path) names = entries_of(found.folder);
  if (!has_rank_files(names))
    fail(ErrorKind::source,
         "{}: holds no *{} of DeepSpeed. The save was interrupted, or files are missing: restore "
         "them.",
         found.folder.string(), model_suffix);
  found.universal = is_universal(names);
  add_rank_files(found, names);
  if (found.universal) add_parameters(found);
  return found;
}

}  // namespace reshard::deepspeed
