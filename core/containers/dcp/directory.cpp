#include "core/containers/dcp/directory.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/dcp/item_paths.hpp"
#include "core/containers/saves.hpp"
#include "core/containers/tracker.hpp"

namespace reshard::dcp {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t largest_backend_bytes = 1 << 20;
constexpr std::size_t shown_names = 8;

bool has(std::vector<std::string> const& names, std::string_view name) {
  return std::ranges::binary_search(names, name);
}
std::string shown(std::vector<std::string> const& names) {
  return names.empty() ? "nothing" : listed(names, shown_names);
}

std::optional<std::int64_t> decimal(std::string_view digits) {
  std::int64_t value = 0;
  if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos) return std::nullopt;
  auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

/// The step of a save, by the name of its folder.
struct Step {
  bool release = false;
  std::optional<std::int64_t> iteration{};
};

std::optional<Step> step_from_name(std::string_view name) {
  if (name == release_name) return Step{.release = true};
  for (std::string_view const prefix :
       {"iter_", "step-", "step_", "checkpoint-", "global_step_", "global_step-", "global_step"})
    if (name.starts_with(prefix))
      if (auto const number = decimal(name.substr(prefix.size())))
        return Step{.iteration = *number};
  return std::nullopt;
}

Step tracked_step(fs::path const& root) {
  SaveStep const step = read_tracker(root, "give the folder of a single save");
  return step.release ? Step{.release = true} : Step{.iteration = step.iteration};
}

/// The folders in `root` that are saves, with all or only one of the steps.
std::vector<std::string> saves_in(fs::path const& root, std::vector<std::string> const& names,
                                  std::optional<Step> const& wanted = {}) {
  std::vector<std::string> saves;
  for (std::string const& name : names) {
    auto const step = step_from_name(name);
    bool const right =
        step &&
        (!wanted || (step->release == wanted->release && step->iteration == wanted->iteration));
    if (right && sees_folder(root / name)) saves.push_back(name);
  }
  return saves;
}

bool is_item_file(std::string_view name) { return name.ends_with(".distcp"); }
/// Whether a file is the metadata of one rank, of a save without collectives: `__3.metadata`.
bool is_metadata_of_rank(std::string_view name) {
  constexpr std::string_view ending = ".metadata";
  return name.starts_with("__") && name.ends_with(ending) &&
         decimal(name.substr(2, name.size() - 2 - std::min(name.size() - 2, ending.size())));
}

/// The backend that metadata.json names.
std::string read_backend(fs::path const& folder, fs::path const& root) {
  fs::path const path = allowed_member(folder, backend_name, root);
  Json const json = parse_json(read_text_file(path, largest_backend_bytes), path.string());
  Json const* const backend = json.find("sharded_backend");
  if (backend == nullptr || backend->text() == nullptr)
    fail(ErrorKind::source,
         "{}: has no string \"sharded_backend\", so it does not belong to a Megatron "
         "checkpoint. Restore it from the original.",
         path.string());
  return *backend->text();
}

void expect_torch_dist(fs::path const& folder, fs::path const& root) {
  if (std::string const backend = read_backend(folder, root); backend != "torch_dist")
    fail(
        ErrorKind::source,
        "{}: the tensors are stored by the backend {}, expected \"torch_dist\". Load the checkpoint with Megatron and save it with "
        "--dist-ckpt-format torch_dist.",
        (folder / backend_name).string(), json_quoted(backend));
}

/// Throws the reason for which a folder without .metadata cannot be read.
[[noreturn]] void refuse_without_metadata(fs::path const& folder, fs::path const& root,
                                          std::vector<std::string> const& names) {
  if (has(names, backend_name)) expect_torch_dist(folder, root);
  if (std::ranges::any_of(names, is_metadata_of_rank))
    fail(ErrorKind::source,
         "{}: has a metadata file for each rank ({}) but none for all ranks: it was saved "
         "without a coordinator, which is not supported. Load it with torch, and save it with "
         "a coordinator.",
         folder.string(), shown(names));
  if (std::ranges::any_of(names, is_item_file) || has(names, backend_name))
    fail(ErrorKind::source,
         "{}: has no {}, which is written last. The save or the copy is incomplete. Found: {}. "
         "Choose another save.",
         folder.string(), metadata_name, shown(names));
  fail(
      ErrorKind::source,
      "{}: expected a folder with {}, found {}. Give the folder of a distributed checkpoint, or the one that holds its saves.",
      folder.string(), metadata_name, shown(names));
}

/// Whether a file next to the items is copied to the target. Lists of checksums would be wrong for
/// any other folder.
bool travels_along(std::string_view name) {
  return name != metadata_name && name != backend_name && name != common_name &&
         name != tracker_name && name != "integrity.json" && name != "reshard.json" &&
         name != "SHA256SUMS" && !is_item_file(name) && !name.starts_with(".metadata") &&
         !is_metadata_of_rank(name);
}

Directory read_folder(fs::path const& root, fs::path const& folder,
                      std::optional<Step> const& step) {
  std::vector<std::string> const names = member_names(folder);
  if (!sees_file(folder / metadata_name)) refuse_without_metadata(folder, root, names);
  for (std::string_view const name : {metadata_name, common_name})
    allowed_member(folder, name, root);
  Directory result{.root = root, .folder = folder, .states = {}, .iteration = {}, .side_files = {}};
  if (step) {
    result.iteration = step->iteration;
    result.release = step->release;
  }
  if (has(names, backend_name)) {
    expect_torch_dist(folder, root);
    result.has_backend_file = true;
  }
  result.has_common_file = has(names, common_name);
  for (std::string const& name : names)
    if (travels_along(name)) result.side_files.push_back(name);
  return result;
}

std::string text_of(Step const& step) {
  return step.release ? std::string(release_name) : fmt::format("iteration {}", *step.iteration);
}

/// The folder that the tracker of `root` names.
std::string tracked(fs::path const& root, std::vector<std::string> const& names, Step const& step) {
  std::vector<std::string> const found = saves_in(root, names, step);
  if (found.empty())
    fail(
        ErrorKind::source,
        "{}: {} names {}, but the saves here are: {}. Give one of them by its path, or restore the missing one.",
        root.string(), tracker_name, text_of(step), listed_saves(saves_of_run(root)));
  if (found.size() > 1)
    fail(ErrorKind::source,
         "{}: {} names {}, and several folders are of it: {}. Give one of "
         "them by its path.",
         root.string(), tracker_name, text_of(step), listed(found));
  return found.front();
}

/// Other programs have a metadata.json, too.
bool names_a_backend(fs::path const& folder) {
  if (!sees_file(folder / backend_name)) return false;
  try {
    (void)read_backend(folder, folder);
    return true;
  } catch (Error const&) {
    return false;
  }
}

bool is_save(fs::path const& folder) {
  return sees_file(folder / metadata_name) || names_a_backend(folder);
}

/// Saves that are complete.
std::vector<std::string> readable(fs::path const& root, std::vector<std::string> saves) {
  std::erase_if(saves,
                [&](std::string const& name) { return !sees_file(root / name / metadata_name); });
  return saves;
}

/// Whether a model of Hugging Face lies in torch's DistributedDataParallel: its keys begin as those
/// of Megatron-FSDP do.
bool holds_wrapped_module(Metadata const& metadata) {
  auto const any_like = [&](std::string_view pattern) {
    return std::ranges::any_of(metadata.tensors, [&](StoredTensor const& tensor) {
      return matches_glob(pattern, tensor.name.text());
    });
  };
  return any_like("model.module.*.embed_tokens.weight") && !any_like("*.word_embeddings.weight");
}

bool has_item_files(fs::path const& folder) {
  return std::ranges::any_of(member_names(folder), is_item_file);
}

}  // namespace

bool is_accelerate_save(fs::path const& path) {
  fs::path const weights = path / accelerate_weights;
  if (!sees_folder(weights) || !(is_save(weights) || has_item_files(weights))) return false;
  return std::ranges::none_of(member_names(path), [](std::string const& name) {
    return name == "pytorch_model_fsdp_1" || name.ends_with(".safetensors");
  });
}

bool looks_like_dcp(fs::path const& given) {
  fs::path const root = normal_path(given);
  if (!sees_folder(root)) return false;
  if (is_save(root) || is_accelerate_save(root)) return true;
  try {
    std::vector<std::string> const names = member_names(root);
    if (std::ranges::any_of(names, is_item_file)) return true;
    std::optional<Step> wanted;
    if (has(names, tracker_name)) wanted = tracked_step(root);
    return std::ranges::any_of(saves_in(root, names, wanted), [&](std::string const& name) {
      return is_save(root / name) || has_item_files(root / name);
    });
  } catch (Error const&) {
    return false;  // open_directory() reports the error
  }
}

Directory open_directory(fs::path const& given) {
  fs::path const root = normal_path(given);
  if (!sees_folder(root))
    fail(ErrorKind::source,
         "{}: expected the folder of a distributed checkpoint, found {}. Check the path.",
         root.string(), sees_anything(root) ? "a file" : "nothing");
  if (sees_file(root / metadata_name))
    return read_folder(root, root, step_from_name(root.filename().string()));
  if (is_accelerate_save(root)) {
    auto const step = step_from_name(root.filename().string());
    Directory result = read_folder(root, root / accelerate_weights, step);
    if (sees_folder(root / accelerate_states))
      result.states = read_folder(root, root / accelerate_states, step).folder;
    return result;
  }
  std::vector<std::string> const names = member_names(root);
  if (has(names, tracker_name)) {
    Step const step = tracked_step(root);
    return read_folder(root, root / tracked(root, names, step), step);
  }
  std::vector<std::string> const saves = saves_in(root, names);
  std::vector<std::string> const complete = readable(root, saves);
  if (complete.size() > 1)
    fail(ErrorKind::source,
         "{}: holds {} saves ({}) and no {} that names one. Give one of them by its path.",
         root.string(), complete.size(), listed_saves(saves_of_run(root)), tracker_name);
  if (complete.size() == 1)
    return read_folder(root, root / complete.front(), step_from_name(complete.front()));
  if (saves.size() == 1)
    return read_folder(root, root / saves.front(), step_from_name(saves.front()));
  refuse_without_metadata(root, root, names);
}

std::vector<fs::path> item_paths(Directory const& directory, Metadata const& metadata) {
  std::vector<fs::path> paths;
  for (std::size_t f = 0; f < metadata.files.size(); ++f)
    paths.push_back(allowed_member(f < metadata.first_joined ? directory.folder : directory.states,
                                   metadata.files[f], directory.root));
  return paths;
}

Flavour flavour_of(Directory const& directory, Metadata const& metadata) {
  if (directory.has_backend_file) return Flavour::torch_dist;
  auto const of_fsdp = [](StoredTensor const& tensor) {
    return tensor.name.starts_with("model.module.") ||
           tensor.name.starts_with("optimizer.state.module.module.module.");
  };
  if (std::ranges::any_of(metadata.tensors, of_fsdp) && !holds_wrapped_module(metadata))
    return Flavour::fsdp_dtensor;
  auto const holds = [&](std::string_view name) {
    return std::ranges::find(metadata.objects, name, &StoredObject::name) != metadata.objects.end();
  };
  if (directory.has_common_file || holds(common_key)) return Flavour::torch_dist;
  auto const of_megatron = [](StoredTensor const& tensor) {
    return tensor.name.starts_with("model.decoder.layers.") &&
           tensor.name.find(".linear_") != std::string::npos;
  };
  bool const torch_dcp = holds("args") && holds("checkpoint_version") &&
                         std::ranges::any_of(metadata.tensors, of_megatron);
  return torch_dcp ? Flavour::torch_dcp : Flavour::plain;
}

std::string backend_json() {
  // As Python's json.dump spells it.
  return R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})";
}

}  // namespace reshard::dcp
