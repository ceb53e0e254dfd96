#include "core/formats/shapes.hpp"

#include <algorithm>

#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/text/text.hpp"
#include "core/base/text/yaml.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/tracker.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/run/run_saves.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view any = "*";
constexpr std::size_t most_shown = 6;
constexpr std::string_view skyrl_tracker_name = "latest_ckpt_global_step.txt";

bool has_star(std::string_view pattern) { return pattern.find(any) != std::string_view::npos; }

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  for (fs::path const& part : fs::path(path)) parts.push_back(part.string());
  return parts;
}

/// The existing paths for one whose parts may be patterns, sorted.
std::vector<fs::path> matching(fs::path const& folder, std::string_view pattern) {
  std::vector<fs::path> found = {folder};
  for (std::string const& part : parts_of(pattern)) {
    std::vector<fs::path> next;
    for (fs::path const& path : found) {
      if (!has_star(part)) {
        if (sees_anything(path / part)) next.push_back(path / part);
        continue;
      }
      if (!sees_folder(path)) continue;
      for (std::string const& name : member_names(path))
        if (matches_glob(part, name)) next.push_back(path / name);
    }
    found = std::move(next);
  }
  return found;
}

/// The sign of a shape that a folder has; "" for none.
std::string sign_of(Shape const& shape, fs::path const& save) {
  for (std::string_view const sign : shape.signs)
    if (auto const found = matching(save, sign); !found.empty())
      return found.front().lexically_relative(save).string();
  return "";
}

bool holds_weights(fs::path const& folder) { return sees_file(folder / dcp::metadata_name); }

/// Whether the folder has files of ranks that match a pattern.
bool holds_files(fs::path const& folder, std::string_view pattern) {
  return sees_folder(folder) && !matching(folder, pattern).empty();
}

/// Whether the folder is a save with files of ranks itself.
bool holds_rank_files(fs::path const& path) {
  return std::ranges::any_of(known_shapes(), [&](Shape const& shape) {
    return !shape.files.empty() && holds_files(path / shape.weights, shape.files);
  });
}

/// A save of this shape, whose weights lie in a folder of their own, or in files of ranks.
bool is_save_of(Shape const& shape, fs::path const& path) {
  if (!shape.files.empty()) return holds_files(path / shape.weights, shape.files);
  if (shape.weights.empty() || !sees_folder(path) || sign_of(shape, path).empty()) return false;
  return std::ranges::any_of(matching(path, shape.weights), holds_weights);
}

/// The folder that readers of Megatron's formats open.
fs::path weights_of(Shape const& shape, fs::path const& save) {
  bool const in_save = has_star(shape.weights) || !shape.files.empty();
  return in_save ? save : save / shape.weights;
}

std::vector<std::string> texts_of(std::span<fs::path const> paths) {
  std::vector<std::string> texts;
  for (fs::path const& path : paths) texts.push_back(path.string());
  return texts;
}

/// The save that a tracker of the run names; nullopt without one. An Error if it is missing.
std::optional<std::size_t> tracked(fs::path const& run, std::span<fs::path const> saves) {
  std::optional<SaveStep> step;
  std::string_view tracker = tracker_name;
  if (sees_file(run / tracker_name)) {
    step = read_tracker(run, "give the folder of one save");
  } else if (sees_file(run / skyrl_tracker_name)) {
    tracker = skyrl_tracker_name;
    step = step_of_tracker(
        read_text_file(readable_member(run, skyrl_tracker_name), largest_tracker_bytes));
  }
  if (!step || step->release) return std::nullopt;
  std::string const number = tracker_text(step->iteration);
  for (std::size_t i = 0; i < saves.size(); ++i) {
    std::string const name = saves[i].lexically_relative(run).begin()->string();
    std::size_t const digits = name.find_last_not_of("0123456789");
    if (digits != std::string::npos && name.substr(digits + 1) == number) return i;
  }
  fail(ErrorKind::source,
       "{}: names step {}, and there is no complete save of it: {} {} there. Wait until it is "
       "saved, or give the folder of one save.",
       (run / tracker).string(), number, listed(texts_of(saves), most_shown),
       saves.size() == 1 ? "is" : "are");
}

std::optional<fs::path> save_in_run(Shape const& shape, fs::path const& run) {
  for (std::string_view const pattern : shape.saves) {
    std::vector<fs::path> saves = matching(run, pattern);
    std::erase_if(saves, [&](fs::path const& path) { return !is_save_of(shape, path); });
    if (saves.empty()) continue;
    if (!has_star(pattern)) return saves.front();
    if (auto const one = tracked(run, saves)) return saves[*one];
    if (saves.size() == 1) return saves.front();
    fail(ErrorKind::source,
         "{}: holds {} saves of {} and no {} that names one of them: {}. Name one.", run.string(),
         saves.size(), shape.program, tracker_name, listed(texts_of(saves), most_shown));
  }
  return std::nullopt;
}

/// The folder of the save, for weights in `folder`; nullopt if its path does not fit.
std::optional<fs::path> save_above(Shape const& shape, fs::path folder) {
  std::vector<std::string> const parts = parts_of(shape.weights);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (!matches_glob(*part, folder.filename().string())) return std::nullopt;
    folder = folder.parent_path();
  }
  return folder;
}

Json const* member_of(Json const& document, std::string_view path) {
  Json const* found = &document;
  while (!path.empty() && found != nullptr) {
    std::size_t const dot = std::min(path.find('.'), path.size());
    found = found->find(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return found;
}

Json read_settings(fs::path const& save, std::string_view name) {
  fs::path const path = readable_member(save, name);
  if (path.extension() != ".json")
    return parse_yaml(read_text_file(path, largest_yaml_bytes), path.string());
  return huggingface::parse_config(read_text_file(path, huggingface::largest_config_bytes),
                                   path.string());
}

constexpr std::string_view origin_equals = " = ";

/// The setting that names the initial model of the training.
std::string origin_of(Shape const& shape, Json const& args, Json const& settings) {
  for (std::string_view const key : shape.origins)
    for (auto const& [document, place] :
         {std::pair<Json const*, std::string_view>{&args, "args"}, {&settings, shape.settings}}) {
      Json const* value = member_of(*document, key);
      if (value == nullptr || value->text() == nullptr || value->text()->empty()) continue;
      return fmt::format("{}: {}{}{}", place, key, origin_equals, *value->text());
    }
  return "";
}

FoundShape found_shape(Shape const& shape, fs::path const& save, std::string evidence,
                       Json const& args) {
  FoundShape found;
  found.program = shape.program;
  found.evidence = std::move(evidence);
  found.save = save;
  for (std::string_view const config : shape.configs)
    found.configs.push_back(config.empty() ? save : save / config);
  Json settings;
  if (!shape.settings.empty() && sees_file(save / shape.settings)) {
    found.settings = (save / shape.settings).string();
    Json const document = read_settings(save, shape.settings);
    if (Json const* member = member_of(document, shape.member)) settings = *member;
    if (Json const* alpha = member_of(document, shape.alpha);
        alpha != nullptr && !shape.alpha.empty())
      found.alpha = *alpha;
    if (!shape.table.empty() && settings.members() != nullptr) {
      found.facts = settings;
      found.table = shape.table;
    }
  }
  if (!shape.optimizer.empty() && holds_weights(save / shape.optimizer))
    found.optimizer = shape.optimizer;
  if (!shape.rng.empty() && holds_weights(save / shape.rng)) found.rng = shape.rng;
  found.origin = origin_of(shape, args, settings);
  return found;
}

}  // namespace

fs::path folder_of_weights(fs::path const& given) {
  fs::path const named = full_path(given);
  if (!sees_folder(named) || holds_weights(named) || holds_rank_files(named)) return given;
  fs::path const path = newest_save(named);
  if (path != named && (holds_weights(path) || holds_rank_files(path))) return path;
  for (Shape const& shape : known_shapes())
    if (is_save_of(shape, path)) return weights_of(shape, path);
  for (Shape const& shape : known_shapes())
    if (auto const save = save_in_run(shape, path)) return weights_of(shape, *save);
  return path == named ? given : path;
}

std::optional<FoundShape> find_shape(fs::path const& given, Json const& args) {
  fs::path const folder = full_path(given);
  for (Shape const& shape : known_shapes()) {
    if (!shape.files.empty()) continue;
    auto const save = save_above(shape, folder);
    if (!save) continue;
    std::string evidence = sign_of(shape, *save);
    if (evidence.empty() && !shape.arg.empty() && args.find(shape.arg) != nullptr)
      evidence = fmt::format("args.{}", shape.arg);
    if (!evidence.empty()) return found_shape(shape, *save, std::move(evidence), args);
  }
  return std::nullopt;
}

std::string value_of_origin(std::string const& origin) {
  std::size_t const at = origin.find(origin_equals);
  return at == std::string::npos ? "" : origin.substr(at + origin_equals.size());
}

std::optional<std::int64_t> step_of(FoundShape const& found) {
  for (Shape const& shape : known_shapes()) {
    if (shape.program != found.program) continue;
    for (std::string_view const pattern : shape.saves) {
      fs::path folder = found.save;
      std::vector<std::string> const parts = parts_of(pattern);
      std::optional<std::int64_t> step;
      auto part = parts.rbegin();
      for (; part != parts.rend() && matches_glob(*part, folder.filename().string()); ++part) {
        if (has_star(*part))
          if (auto const read = step_of_tracker(folder.filename().string().substr(part->find(any))))
            step = read->iteration;
        folder = folder.parent_path();
      }
      if (part == parts.rend() && step) return step;
    }
  }
  return std::nullopt;
}

bool describe_a_model(Json const& args) {
  for (std::string_view const key : {"num_layers", "hidden_size"}) {
    Json const* value = args.find(key);
    if (value == nullptr || value->integer() == nullptr) return false;
  }
  return true;
}

}  // namespace reshard
