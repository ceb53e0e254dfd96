#include "stages/read/checkpoint_look.hpp"

#include "core/containers/dcp/directory.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/megatron/directory.hpp"
#include "stages/read/open_hdf5.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr int levels = 3;

bool holds_shards(fs::path const& folder) {
  return megatron::looks_like_megatron(folder) || huggingface::looks_like_folder(folder) || dcp::looks_like_dcp(folder);
}

bool is_checkpoint_surely(fs::path const& folder) {
  try {
    return holds_shards(folder) || (fs::exists(folder / manifest_name) && looks_like_hdf5_checkpoint(folder));
  } catch (std::exception const&) {
    return false;
  }
}

}  // namespace

bool looks_like_checkpoint(fs::path const& folder) { return holds_shards(folder) || looks_like_hdf5_checkpoint(folder); }

std::optional<fs::path> enclosing_checkpoint(fs::path const& file) {
  fs::path folder = file.parent_path();
  for (int level = 0; level < levels && folder != folder.root_path(); ++level, folder = folder.parent_path())
    if (is_checkpoint_surely(folder)) return folder;
  return std::nullopt;
}

}  // namespace reshard
