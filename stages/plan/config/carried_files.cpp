#include "stages/plan/config/carried_files.hpp"

#include <algorithm>
#include <array>

#include "core/base/sight.hpp"
#include "core/base/text.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Beside iterations: training goes on in the same folder, and does not copy what it does not know.
bool is_iteration(fs::path const& folder) {
  std::string const name = folder.filename().string();
  return name == "release" || name.starts_with("iter_") || name.starts_with("step-") || name.starts_with("step_") || name.starts_with("global_step");
}

std::vector<fs::path> places(fs::path const& folder, fs::path const& root) {
  std::vector<fs::path> result{folder};
  if (root != folder) result.push_back(root);
  if (root == folder && is_iteration(folder) && folder.has_parent_path()) result.push_back(folder.parent_path());
  return result;
}

/// Names of files that describe a model, its words and its inputs, or come with it. Beside a file, whose folder is anybody's, nothing else belongs to
/// it.
constexpr std::array<char const*, 13> model_files = {"*config.json", "*token*.json",   "*token*.model", "vocab*",     "merges.txt",
                                                     "*.jinja",      "chat_template*", "spiece.model",  "*.tiktoken", "*.md",
                                                     "*.py",         "LICENSE*",       "NOTICE*"};

}  // namespace

std::optional<huggingface::Folder> model_files_beside(fs::path const& path) {
  fs::path const folder = sees_folder(path) ? path : path.parent_path();
  if (!sees_file(folder / huggingface::config_name)) return std::nullopt;
  huggingface::Folder found = huggingface::open_reference(folder);
  std::erase_if(found.sidecars, [](std::string const& name) {
    return std::ranges::none_of(model_files, [&](char const* pattern) { return matches_glob(pattern, name); });
  });
  return found;
}

huggingface::Folder described_by(fs::path const& path) { return huggingface::open_reference(sees_folder(path) ? path : path.parent_path()); }

std::optional<huggingface::Folder> files_of(SourceCheckpoint const& source, fs::path const& source_config) {
  if (!source_config.empty()) return described_by(source_config);
  if (source.huggingface) return source.huggingface->folder;
  if (source.logical) return model_files_beside(source.logical->folder);
  if (source.megatron) return huggingface::find_carried(places(source.megatron->directory.iteration_dir, source.megatron->directory.root));
  if (source.dcp->container == TensorContainer::hdf5) return model_files_beside(source.dcp->directory.folder);
  auto carried = huggingface::find_carried(places(source.dcp->directory.folder, source.dcp->directory.root));
  return carried || source.dcp->flavour != dcp::Flavour::plain ? carried : model_files_beside(source.dcp->directory.folder);
}

}  // namespace reshard
