#include "core/formats/model_files.hpp"

#include <algorithm>
#include <array>

#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/formats/huggingface/config/config.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Whether a folder is an iteration: its model files may be next to it, as training continues in
/// the same folder and does not copy them.
bool is_iteration(fs::path const& folder) {
  std::string const name = folder.filename().string();
  return name == "release" || name.starts_with("iter_") || name.starts_with("step-") ||
         name.starts_with("step_") || name.starts_with("global_step");
}

std::vector<fs::path> places(fs::path const& folder, fs::path const& root) {
  std::vector<fs::path> result{folder};
  if (root != folder) result.push_back(root);
  if (root == folder && is_iteration(folder) && folder.has_parent_path())
    result.push_back(folder.parent_path());
  return result;
}

/// The folder in which Megatron-Bridge saves the files of save_pretrained(), or the files of one of
/// Megatron's own tokenizers, which have no tokenizer_config.json: transformers cannot load those.
constexpr char const* tokenizer_name = "tokenizer";

/// Names of files that describe a model, its words and its inputs, or come with it. Other files in
/// a folder do not belong to the model.
constexpr std::array<char const*, 13> model_files = {
    "*config.json", "*token*.json",   "*token*.model", "vocab*",     "merges.txt",
    "*.jinja",      "chat_template*", "spiece.model",  "*.tiktoken", "*.md",
    "*.py",         "LICENSE*",       "NOTICE*"};

/// Whether a name belongs to a checkpoint in the same folder.
bool belongs_to_save(std::string const& name) {
  auto const matches = [&](std::string_view pattern) { return matches_glob(pattern, name); };
  return std::ranges::any_of(all_formats(), [&](Format const* format) {
    FormatWords const words = format->words();
    return std::ranges::any_of(words.remains, matches) || std::ranges::any_of(words.own, matches);
  });
}

void leave_out_strangers(huggingface::Folder& folder) {
  std::erase_if(folder.sidecars, [](std::string const& name) {
    return belongs_to_save(name) || std::ranges::none_of(model_files, [&](char const* pattern) {
             return matches_glob(pattern, name);
           });
  });
}

}  // namespace

std::optional<huggingface::Folder> carried_in(fs::path const& folder, fs::path const& root) {
  return huggingface::find_carried(places(folder, root));
}

std::optional<huggingface::Folder> with_config_inside(fs::path const& place, Json const& config,
                                                      std::string text) {
  // If both are equal, the bytes are those of the file next to the container.
  std::optional<huggingface::Folder> beside = model_files_beside(place);
  if (config.is_null() || (beside && beside->config == config)) return beside;
  if (!beside) beside.emplace();
  beside->path = sees_folder(place) ? place : place.parent_path();
  beside->config = config;
  beside->config_text = text.empty() ? config.dump(2) + "\n" : std::move(text);
  return beside;
}

std::optional<huggingface::Folder> model_files_beside(fs::path const& path) {
  fs::path const folder = sees_folder(path) ? path : path.parent_path();
  if (!sees_file(folder / huggingface::config_name)) return std::nullopt;
  huggingface::Folder found = huggingface::open_reference(folder);
  leave_out_strangers(found);
  return found;
}

std::optional<huggingface::Folder> tokenizer_of(Checkpoint const& source) {
  for (fs::path const& place : {source.folder, source.root}) {
    fs::path const folder = place / tokenizer_name;
    if (place.empty() || !sees_file(folder / "tokenizer_config.json")) continue;
    huggingface::Folder found = huggingface::open_sidecars(folder);
    leave_out_strangers(found);
    return found;
  }
  return std::nullopt;
}

huggingface::Folder described_by(fs::path const& path) {
  if (sees_folder(path)) {
    huggingface::Folder found = huggingface::open_reference(path);
    std::erase_if(found.sidecars, belongs_to_save);
    return found;
  }
  if (!sees_file(path))
    fail(ErrorKind::usage,
         "{}: there is no such file or folder. Name a config.json, or a folder that has one.",
         path.string());
  huggingface::Folder found;
  if (path.filename() == huggingface::config_name) {
    found = huggingface::open_reference(path.parent_path());
    leave_out_strangers(found);
    return found;
  }
  found.path = path.parent_path();
  found.config_text = read_text_file(path, huggingface::largest_config_bytes);
  found.config = huggingface::parse_config(found.config_text, path.string());
  return found;
}

/// The files found by the format, else those at the places of the folder's shape.
static std::optional<huggingface::Folder> found_files(Checkpoint const& source) {
  if (source.model.beside && !source.model.beside->adapter.is_null()) return source.model.beside;
  std::optional<huggingface::Folder> found = source.format->model_files(source);
  if (found || !source.shares.shape) return found;
  for (fs::path const& place : source.shares.shape->configs)
    if (sees_folder(place))
      if ((found = model_files_beside(place))) return found;
  return found;
}

/// Without the description of an adapter that the checkpoint does not hold any more.
static std::optional<huggingface::Folder> own_files(Checkpoint const& source) {
  std::optional<huggingface::Folder> found = found_files(source);
  if (!found || !source.others.without_adapter) return found;
  found->adapter = Json();
  found->adapter_text.clear();
  std::erase(found->sidecars, huggingface::adapter_config_name);
  return found;
}

std::optional<huggingface::Folder> files_of(Checkpoint const& source,
                                            fs::path const& source_config) {
  if (source_config.empty()) return own_files(source);
  huggingface::Folder named = described_by(source_config);
  std::optional<huggingface::Folder> own = own_files(source);
  bool const adapter = own && !own->adapter.is_null();  // its files are not those of its model
  if (own) named.file_metadata = own->file_metadata;
  if (!own || (!named.sidecars.empty() && !adapter)) return named;
  own->config =
      std::move(named.config);  // only the config: other model files are still the source's
  own->config_text = std::move(named.config_text);
  return own;
}

}  // namespace reshard
