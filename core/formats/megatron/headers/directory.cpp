#include "core/formats/megatron/headers/directory.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/files/tree.hpp"
#include "core/base/member_file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/text.hpp"
#include "core/base/threads/workers.hpp"
#include "core/containers/saves.hpp"

namespace reshard::megatron {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view iteration_prefix = "iter_";
constexpr std::string_view tracker_way_out = "give the iter_* directory itself";

struct Entry {
  std::string name;
  bool directory = false;  ///< also behind a link
  bool link = false;
};

/// Letters for the kinds of entries.
constexpr char letter_of_folder = 'd';
constexpr char letter_of_linked_folder = 'D';
constexpr char letter_of_link = 'L';
constexpr char letter_of_other = 'f';

/// Each entry of a folder with its letter in front.
std::vector<std::string> lettered_entries(fs::path const& path) {
  std::error_code error;
  std::vector<TreeEntry> const listed = known_listing_of(path, error);
  if (error)
    fail(ErrorKind::source, "{}: cannot be listed: {}. Check the path and its permissions.",
         path.string(), error.message());
  std::vector<std::string> names;
  for (TreeEntry const& entry : listed) {
    std::error_code unknown;  // a dangling link is an entry that is no directory
    char letter = entry.type == fs::file_type::directory ? letter_of_folder : letter_of_other;
    if (entry.type == fs::file_type::symlink)
      letter = fs::is_directory(entry.path, unknown) ? letter_of_linked_folder : letter_of_link;
    names.push_back(letter + entry.path.filename().string());
  }
  return names;
}

Entry entry_of(std::string_view lettered) {
  char const letter = lettered.front();
  return {std::string(lettered.substr(1)),
          letter == letter_of_folder || letter == letter_of_linked_folder,
          letter == letter_of_link || letter == letter_of_linked_folder};
}

void sort_by_name(std::vector<Entry>& entries) { std::ranges::sort(entries, {}, &Entry::name); }

/// The names in a directory, sorted as text, so that every rank sees the same order.
std::vector<Entry> entries_of(fs::path const& path) {
  std::vector<Entry> result;
  for (std::string const& name :
       seen_names("entries of", path, [&] { return lettered_entries(path); }))
    result.push_back(entry_of(name));
  sort_by_name(result);
  return result;
}

/// The entries of folders in a directory, by one question: there may be thousands of them.
std::vector<std::vector<Entry>> entries_of_each(fs::path const& path,
                                                std::vector<std::string> const& folders) {
  auto const look = [&] {
    std::vector<std::vector<std::string>> names(folders.size());
    overlapped(folders.size(),
               [&](std::size_t i) { names[i] = lettered_entries(path / folders[i]); });
    std::vector<std::string> all;
    for (std::size_t i = 0; i < folders.size(); ++i)
      for (std::string const& name : names[i]) all.push_back(fmt::format("{}/{}", i, name));
    return all;
  };
  std::vector<std::vector<Entry>> result(folders.size());
  for (std::string const& one :
       seen_names(fmt::format("entries of {} in", counted(folders.size(), "folder")), path, look)) {
    std::size_t const slash = one.find('/');
    std::size_t number = 0;
    std::from_chars(one.data(), one.data() + slash, number);
    result.at(number).push_back(entry_of(std::string_view(one).substr(slash + 1)));
  }
  for (std::vector<Entry>& entries : result) sort_by_name(entries);
  return result;
}

std::string first_names(std::vector<Entry> const& entries) {
  std::vector<std::string> names;
  for (auto const& entry : entries) names.push_back(entry.name);
  return names.empty() ? "nothing" : listed(names, 6);
}

bool has_shards(std::vector<Entry> const& entries) {
  return std::any_of(entries.begin(), entries.end(), [](Entry const& e) {
    return e.directory && parse_shard_name(e.name).has_value();
  });
}

bool has(std::vector<Entry> const& entries, std::string_view name) {
  return std::any_of(entries.begin(), entries.end(),
                     [&](Entry const& e) { return e.name == name; });
}

std::optional<std::int64_t> parse_decimal(std::string_view digits) {
  if (digits.empty() || digits.front() < '0' || digits.front() > '9') return std::nullopt;
  std::int64_t value = 0;
  auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

using Step = SaveStep;

/// The step in a directory's name: an iteration (any width), or a release.
std::optional<Step> parse_step(std::string_view name) {
  if (name == release_name) return Step{.release = true};
  if (!name.starts_with(iteration_prefix)) return std::nullopt;
  auto const iteration = parse_decimal(name.substr(iteration_prefix.size()));
  if (!iteration) return std::nullopt;
  return Step{.iteration = *iteration};
}

/// The directories of a root that are iterations (or a release).
std::vector<std::string> step_names(std::vector<Entry> const& entries,
                                    std::optional<Step> wanted = {}) {
  std::vector<std::string> names;
  for (auto const& entry : entries) {
    auto const step = parse_step(entry.name);
    if (entry.directory && step && (!wanted || *step == *wanted)) names.push_back(entry.name);
  }
  return names;
}

[[noreturn]] void refuse_distributed(fs::path const& path, std::string_view sign) {
  fail(
      ErrorKind::source,
      "{}: holds {}, so this is a distributed checkpoint (PyTorch's, or Megatron's --ckpt-format torch_dist), not an mp_rank_* one. "
      "Leave out source.format, or name the folder that has the .metadata.",
      path.string(), sign);
}

bool deepspeed_file(std::string_view name) {
  return matches_glob("mp_rank_*_model_states.pt", name) ||
         matches_glob("layer_*-model_*states.pt", name) ||
         matches_glob("layer_*_expert_*_mp_rank_*_model_states.pt", name) ||
         matches_glob("*zero_pp_rank_*_states.pt", name);
}

/// Throws an Error that names the format of a directory of another known format; returns otherwise.
void refuse_other_formats(fs::path const& path, std::vector<Entry> const& entries) {
  if (has(entries, ".metadata")) refuse_distributed(path, ".metadata");
  for (std::string_view const sign : {"metadata.json", "common.pt"})
    if (has(entries, sign))
      fail(ErrorKind::source,
           "{}: holds {} of a distributed checkpoint (Megatron's --ckpt-format torch_dist) and no "
           ".metadata, which is written last. The save or the copy is incomplete: choose another "
           "save.",
           path.string(), sign);
  for (auto const& entry : entries)
    if (!entry.directory && deepspeed_file(entry.name))
      fail(ErrorKind::source,
           "{}: {} is a file of a DeepSpeed checkpoint; a Megatron shard is a directory "
           "mp_rank_TT[_PPP][_EEE]. Leave out source.format.",
           path.string(), entry.name);
}

/// `given` is the user's path; `entries` are those in the folder.
Shard make_shard(fs::path const& given, fs::path const& parent, Entry const& folder,
                 std::vector<Entry> const& entries) {
  Shard shard{.name = folder.name,
              .path = parent / folder.name,
              .numbers = *parse_shard_name(folder.name),
              .files = {},
              .model_file = {}};
  bool has_link = folder.link;
  for (auto const& entry : entries) {
    if (!entry.directory) shard.files.push_back(entry.name);
    has_link = has_link || entry.link;
  }
  for (std::string_view const file : {model_file_name, std::string_view("model_rng.pt")})
    if (shard.model_file.empty() &&
        std::binary_search(shard.files.begin(), shard.files.end(), file))
      shard.model_file = file;
  if (has_link) allowed_member(parent, fs::path(folder.name) / shard.model_file, given);
  return shard;
}

bool only_optimizer(Shard const& shard) {
  if (!shard.model_file.empty()) return false;
  return std::any_of(shard.files.begin(), shard.files.end(), [](std::string const& f) {
    return f == "optim.pt" || f == "distrib_optim.pt";
  });
}

/// The number of fields that shards with weights have most often; 0 when none has weights.
std::size_t usual_fields(std::vector<Shard> const& shards) {
  std::map<std::size_t, std::size_t> counts;
  for (auto const& shard : shards)
    if (!shard.model_file.empty()) ++counts[shard.numbers.numbers.size()];
  auto const most =
      std::max_element(counts.begin(), counts.end(),
                       [](auto const& a, auto const& b) { return a.second < b.second; });
  return most == counts.end() ? 0 : most->first;
}

/// A directory with one number more than the shards and only an optimizer file belongs to a
/// data-parallel rank: its last number (or the one before ep) is no coordinate of the weights.
void set_optimizer_directories_apart(Directory& found) {
  auto const fields = usual_fields(found.shards);
  std::vector<Shard> kept;
  for (auto& shard : found.shards) {
    if (only_optimizer(shard) && shard.numbers.numbers.size() != fields)
      found.optimizer_only.push_back(shard.name);
    else
      kept.push_back(std::move(shard));
  }
  found.shards = std::move(kept);
  if (found.shards.empty())
    fail(ErrorKind::source,
         "{}: {} hold an optimizer file (optim.pt, distrib_optim.pt) and no {}. Their last "
         "number is a data-parallel rank, so there are no weights here. Give the directory that "
         "holds the weights.",
         found.iteration_dir.string(), listed(found.optimizer_only, 4), model_file_name);
  if (!found.optimizer_only.empty())
    found.notes.push_back(fmt::format(
        "{} directories of data-parallel ranks hold only optimizer files and are not read: {}",
        found.optimizer_only.size(), listed(found.optimizer_only, 4)));
}

Directory read_iteration(fs::path const& given, fs::path const& root, fs::path const& iteration_dir,
                         Step step) {
  Directory found{.root = root,
                  .iteration_dir = iteration_dir,
                  .release = step.release,
                  .iteration = step.iteration,
                  .shards = {},
                  .optimizer_only = {},
                  .foreign = {},
                  .notes = {}};
  auto const entries = entries_of(iteration_dir);
  refuse_other_formats(iteration_dir, entries);
  std::vector<Entry> folders;
  std::vector<std::string> names;
  for (auto const& entry : entries) {
    bool const is_shard = entry.directory && parse_shard_name(entry.name);
    if (is_shard) folders.push_back(entry);
    (is_shard ? names : found.foreign).push_back(entry.name);
  }
  auto const inside = entries_of_each(iteration_dir, names);
  for (std::size_t i = 0; i < folders.size(); ++i)
    found.shards.push_back(make_shard(given, iteration_dir, folders[i], inside[i]));
  if (found.shards.empty())
    fail(ErrorKind::source,
         "{}: expected directories mp_rank_TT[_PPP][_EEE], found {}. The save may have been "
         "interrupted: choose another iteration.",
         iteration_dir.string(), first_names(entries));
  // As text mp_rank_100 comes before mp_rank_99; a name breaks the tie of equal numbers with
  // different widths.
  std::stable_sort(found.shards.begin(), found.shards.end(), [](Shard const& a, Shard const& b) {
    return a.numbers.numbers < b.numbers.numbers;
  });
  set_optimizer_directories_apart(found);
  return found;
}

Directory open_tracked(fs::path const& root, std::vector<Entry> const& entries) {
  Step const step = read_tracker(root, tracker_way_out);
  auto const names = step_names(entries, step);
  auto const wanted =
      step.release ? std::string(release_name) : iteration_directory_name(step.iteration);
  if (names.empty()) {
    fail(
        ErrorKind::source,
        "{}: {} names {}, but the iterations here are: {}. Give one of them by its path, or restore the missing one.",
        root.string(), tracker_name, wanted, listed_saves(saves_of_run(root)));
  }
  auto const exact = std::find(names.begin(), names.end(), wanted);
  if (exact == names.end() && names.size() > 1)
    fail(ErrorKind::source,
         "{}: {} names iteration {}, and several folders have this number: {}. Give one of "
         "them by its path.",
         root.string(), tracker_name, step.iteration, listed(names));
  return read_iteration(root, root, root / (exact == names.end() ? names.front() : *exact), step);
}

Directory open_untracked(fs::path const& root, std::vector<Entry> const& entries) {
  auto const names = step_names(entries);
  if (names.size() != 1) {
    refuse_other_formats(root, entries);
    if (names.size() > 1)
      fail(ErrorKind::source,
           "{}: holds {} and no {}, which names one of them: {}. Give one of them by its "
           "path.",
           root.string(), counted(names.size(), "iteration"), tracker_name,
           listed_saves(saves_of_run(root)));
    fail(
        ErrorKind::source,
        "{}: expected {}, one iter_* or release directory, or mp_rank_* directories; found {}. Give {}.",
        root.string(), tracker_name, first_names(entries),
        "the directory of a Megatron checkpoint");
  }
  auto found = read_iteration(root, root, root / names.front(), *parse_step(names.front()));
  found.notes.push_back(
      fmt::format("{} is missing, so the only iteration is used: {}. Its save may be incomplete.",
                  tracker_name, names.front()));
  return found;
}

}  // namespace

Directory open_directory(fs::path const& given) {
  fs::path const path = normal_path(given);
  if (!sees_folder(path))
    fail(ErrorKind::source,
         "{}: expected the directory of a Megatron checkpoint, found {}. Check the path.",
         path.string(), sees_anything(path) ? "a file" : "nothing");
  auto const entries = entries_of(path);
  if (has(entries, tracker_name)) return open_tracked(path, entries);
  auto const step = parse_step(path.filename().string());
  if (step)
    return read_iteration(path, path.has_parent_path() ? path.parent_path() : fs::path("."), path,
                          *step);
  if (has_shards(entries)) return read_iteration(path, path, path, {});
  return open_untracked(path, entries);
}

bool looks_like_megatron(fs::path const& path) {
  try {
    auto const entries = entries_of(path);
    if (has_shards(entries)) return true;
    if (has(entries, tracker_name)) {
      auto const names = step_names(entries, read_tracker(path, tracker_way_out));
      return std::any_of(names.begin(), names.end(), [&](std::string const& name) {
        return has_shards(entries_of(path / name));
      });
    }
    auto const names = step_names(entries);
    return names.size() == 1 && has_shards(entries_of(path / names.front()));
  } catch (std::exception const&) {
    return false;
  }
}

std::string iteration_directory_name(std::int64_t iteration) {
  return fmt::format("iter_{:07}", iteration);
}

}  // namespace reshard::megatron
