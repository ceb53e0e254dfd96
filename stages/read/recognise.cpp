#include "stages/read/recognise.hpp"

#include <algorithm>

#include "core/base/sight.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/megatron/directory.hpp"
#include "stages/read/foreign.hpp"
#include "stages/read/open_dcp.hpp"
#include "stages/read/open_hdf5.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr int levels = 3;

/// What is in a folder, sorted; folders with a '/' behind.
std::vector<std::string> marked_names(fs::path const& path) {
  std::vector<std::string> names = seen_names("marked names of", path, [&] {
    std::vector<std::string> found;
    std::error_code ended;
    for (fs::directory_iterator it(path, ended); !ended && it != fs::directory_iterator();
         it.increment(ended)) {
      std::error_code unknown;
      found.push_back(it->path().filename().string() + (it->is_directory(unknown) ? "/" : ""));
    }
    if (ended)
      fail(ErrorKind::source, "{}: cannot be listed: {}. Check the path and its permissions.",
           path.string(), ended.message());
    return found;
  });
  std::ranges::sort(names);
  return names;
}

bool is_checkpoint_surely(fs::path const& folder) {
  try {
    std::vector<CheckpointKind> const kinds = recognise(folder);
    return !kinds.empty() &&
           (kinds.front() != CheckpointKind::hdf5 || fs::exists(folder / manifest_name));
  } catch (std::exception const&) {
    return false;
  }
}

/// What the path may be, where it can be a checkpoint at all.
std::vector<CheckpointKind> kinds_of_checkpoint(fs::path const& path) {
  if (!sees_anything(path))
    fail(ErrorKind::source, "{}: does not exist. Check the path (source.path of a job file).",
         path.string());
  if (sees_file(path) && looks_like_hdf5_checkpoint(path)) return {CheckpointKind::hdf5};
  if (!sees_folder(path)) fail(ErrorKind::source, "{}: {}", path.string(), foreign_file(path));
  std::vector<CheckpointKind> kinds = recognise(path);
  if (!kinds.empty()) return kinds;
  if (std::string const answer = foreign_folder(path, marked_names(path)); !answer.empty())
    fail(ErrorKind::source, "{}: {}", path.string(), answer);
  if (sees_anything(path / huggingface::config_name))
    fail(
        ErrorKind::source,
        "{}: holds a {} but no weights, neither *.safetensors nor {}. Name the folder with the weights, or download them.",
        path.string(), huggingface::config_name, huggingface::index_name);
  return kinds;
}

CheckpointKind found_kind(fs::path const& path, std::vector<CheckpointKind> const& kinds) {
  if (kinds.size() > 1)
    fail(
        ErrorKind::source,
        "{}: holds several of Megatron ranks, Hugging Face weights and a {} side by side. Say which with source.format.",
        path.string(), dcp::metadata_name);
  return kinds.empty() ? CheckpointKind::megatron
                       : kinds.front();  // whose reader says what is missing
}

CheckpointKind wanted_kind(fs::path const& path, SourceFormat wanted,
                           std::vector<CheckpointKind> const& kinds) {
  switch (wanted) {
    case SourceFormat::megatron: return CheckpointKind::megatron;
    case SourceFormat::huggingface: return CheckpointKind::huggingface;
    case SourceFormat::dcp:
      return dcp::looks_like_dcp(path) || !looks_like_boxed_safetensors(path)
                 ? CheckpointKind::dcp
                 : CheckpointKind::huggingface;
    case SourceFormat::hdf5: return CheckpointKind::hdf5;
    case SourceFormat::found: break;
  }
  return found_kind(path, kinds);
}

}  // namespace

std::vector<CheckpointKind> recognise(fs::path const& path) {
  std::vector<CheckpointKind> kinds;
  if (megatron::looks_like_megatron(path)) kinds.push_back(CheckpointKind::megatron);
  if (huggingface::looks_like_folder(path)) kinds.push_back(CheckpointKind::huggingface);
  if (dcp::looks_like_dcp(path)) kinds.push_back(CheckpointKind::dcp);
  if (kinds.empty() && looks_like_hdf5_checkpoint(path)) kinds.push_back(CheckpointKind::hdf5);
  return kinds;
}

CheckpointKind kind_of(fs::path const& path, SourceFormat wanted) {
  CheckpointKind const kind = wanted_kind(path, wanted, kinds_of_checkpoint(path));
  return kind == CheckpointKind::huggingface && looks_like_boxed_safetensors(path)
             ? CheckpointKind::boxed_safetensors
             : kind;
}

void check_checkpoint_folder(fs::path const& path) { (void)kinds_of_checkpoint(path); }

std::optional<fs::path> enclosing_checkpoint(fs::path const& file) {
  fs::path folder = file.parent_path();
  for (int level = 0; level < levels && folder != folder.root_path();
       ++level, folder = folder.parent_path())
    if (is_checkpoint_surely(folder)) return folder;
  return std::nullopt;
}

}  // namespace reshard
