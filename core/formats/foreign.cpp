#include "core/formats/foreign.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view gguf =
    "the format of llama.cpp, which is not supported. Use the Hugging Face folder that it was "
    "made from.";
constexpr std::string_view torch_files =
    "Save the model with save_pretrained or with torch.distributed.checkpoint, and name that folder.";
constexpr std::array<char const*, 4> torch_patterns = {"*.pt", "*.pth", "*.bin", "*.ckpt"};

/// A file that only one program writes, with its description.
struct ForeignFile {
  char const* pattern;
  char const* what;
};
constexpr std::array<ForeignFile, 12> foreign_files = {{{"*.engine", "an engine of TensorRT-LLM"},
                                                        {"*.onnx", "an ONNX graph"},
                                                        {"*.msgpack", "weights of Flax (JAX)"},
                                                        {"*.ckpt.index", "a TensorFlow checkpoint"},
                                                        {"*.keras", "a Keras model"},
                                                        {"*.tflite", "a TensorFlow Lite model"},
                                                        {"*.pdparams", "weights of Paddle"},
                                                        {"*.npz", "NumPy arrays"},
                                                        {"*.npy", "a NumPy array"},
                                                        {"*.mlpackage/", "a Core ML model"},
                                                        {"*.llamafile", "a llamafile"},
                                                        {"*.ggml", "a file of llama.cpp"}}};
constexpr std::array<char const*, 6> archives = {"*.tar",     "*.tar.gz", "*.tgz",
                                                 "*.tar.zst", "*.tar.xz", "*.zip"};
constexpr std::string_view instead =
    "which reshard does not read. Use the model's Hugging Face folder.";

class Names {
 public:
  explicit Names(std::span<std::string const> names) : names_(names) {}

  bool has(std::string_view name) const { return std::ranges::find(names_, name) != names_.end(); }
  std::vector<std::string> like(std::string_view pattern) const {
    std::vector<std::string> found;
    std::ranges::copy_if(names_, std::back_inserter(found),
                         [&](std::string const& name) { return matches_glob(pattern, name); });
    return found;
  }
  std::string first(std::string_view pattern) const {
    auto const found = like(pattern);
    return found.empty() ? "" : found.front();
  }

 private:
  std::span<std::string const> names_;
};

std::string without_slash(std::string name) {
  if (name.ends_with('/')) name.pop_back();
  return name;
}

/// The entry for a file of another program, and its name; nullptr for none.
ForeignFile const* foreign_file_named(Names const& names, std::string& name) {
  for (ForeignFile const& file : foreign_files)
    if (name = names.first(file.pattern); !name.empty()) return &file;
  return nullptr;
}

/// Whether steps of Orbax's CheckpointManager are in the folder: "10/state/_METADATA".
bool holds_orbax_steps(fs::path const& path, Names const& names) {
  constexpr std::size_t most_steps = 4;
  std::error_code ended;
  std::vector<std::string> steps = names.like("*/");
  std::erase_if(steps, [](std::string const& name) {
    return !std::all_of(name.begin(), name.end() - 1, [](char c) { return c >= '0' && c <= '9'; });
  });
  if (steps.size() > most_steps) steps.resize(most_steps);
  for (std::string const& step : steps) {
    fs::path const folder = path / without_slash(step);
    if (fs::exists(folder / "_CHECKPOINT_METADATA", ended)) return true;
    for (fs::directory_iterator it(folder, ended); !ended && it != fs::directory_iterator();
         it.increment(ended))
      if (fs::exists(it->path() / "_METADATA", ended) ||
          fs::exists(it->path() / "manifest.ocdbt", ended))
        return true;
  }
  return false;
}

/// The sentence about files of other programs, by names that only they use.
std::string known(fs::path const& path, Names const& names) {
  if (auto const file = names.first("*.gguf"); !file.empty())
    return fmt::format("holds {}, {}", file, gguf);
  if (names.has("context/") && names.has("weights/"))
    return fmt::format("is a NeMo 2 folder. Name its weights: {}.", (path / "weights").string());
  if (names.has("snapshots/") && (names.has("refs/") || names.has("blobs/")))
    return fmt::format(
        "is a model in Hugging Face's cache. Name the folder of one revision below {}.",
        (path / "snapshots").string());
  if (names.has("_CHECKPOINT_METADATA") || names.has("manifest.ocdbt") || names.has("_METADATA") ||
      holds_orbax_steps(path, names))
    return "is an Orbax checkpoint (JAX), which is not supported. Save the model as a Hugging "
           "Face folder: of MaxText's checkpoints python3 -m "
           "maxtext.checkpoint_conversion.to_huggingface makes one.";
  if (auto const file = names.first("consolidated.*.pth"); !file.empty())
    return fmt::format(
        "holds {}, the format of Meta's own releases, which is not supported. Use the Hugging "
        "Face folder of the model.",
        file);
  if (auto const file = names.first("*.nemo"); !file.empty())
    return fmt::format("holds {}, a NeMo 1 archive. Unpack it with tar, and name that folder.",
                       file);
  if (names.has(".zgroup") || names.has(".zarray") || names.has(".zmetadata"))
    return "holds Zarr arrays, which are not supported. Load the checkpoint with Megatron, and "
           "save it with --dist-ckpt-format torch_dist.";
  if (auto const model = names.first("models--*/"); !model.empty())
    return fmt::format(
        "is the cache of the Hugging Face Hub. Name the folder of one revision, such as one below "
        "{}.",
        (path / without_slash(model) / "snapshots").string());
  std::string name;
  if (ForeignFile const* const file = foreign_file_named(names, name); file != nullptr)
    return fmt::format("holds {}, {}, {}", without_slash(name), file->what, instead);
  if (auto const steps = names.like("checkpoint-*/"); !steps.empty())
    return fmt::format("is the output folder of a trainer with {}. Name one of them, such as {}.",
                       counted(steps.size(), "checkpoint"),
                       (path / without_slash(steps.back())).string());
  return "";
}

/// The most likely intended checkpoint: the last one that is not of an optimizer by its name.
std::string const& likely_weights(std::span<std::string const> checkpoints) {
  for (std::size_t i = checkpoints.size(); i-- > 0;)
    if (!checkpoints[i].starts_with("optim")) return checkpoints[i];
  return checkpoints.back();
}

}  // namespace

std::string folder_of_another_program(fs::path const& path, std::span<std::string const> names) {
  return known(path, Names(names));
}

std::string foreign_folder(fs::path const& path, std::span<std::string const> list,
                           std::span<std::string const> checkpoints,
                           std::span<std::string_view const> signs) {
  if (list.empty()) return "is an empty folder. Name the folder of a checkpoint.";
  Names const names(list);
  if (std::string answer = known(path, names); !answer.empty()) return answer;
  if (!checkpoints.empty())
    return fmt::format(
        "is not a checkpoint itself. It holds checkpoints: {}. Name one, such "
        "as {}.",
        listed(std::vector(checkpoints.begin(), checkpoints.end()), 6),
        (path / likely_weights(checkpoints)).string());
  for (char const* const pattern : torch_patterns)
    if (auto const file = names.first(pattern); !file.empty())
      return fmt::format(
          "holds {}, by its name a file of torch.save, which is read only in folders of Megatron, "
          "DeepSpeed and FSDP. {}",
          file, torch_files);
  std::vector<std::string> shown;
  for (std::string const& name : list) shown.push_back(without_slash(name));
  return fmt::format(
      "is not a supported format: no {}. It holds {}. Name the folder that holds the weights.",
      fmt::join(signs, ", no "), listed(shown, 6));
}

std::string foreign_file(fs::path const& path) {
  std::string const name = path.filename().string();
  std::string const folder = path.has_parent_path() ? path.parent_path().string() : ".";
  if (matches_glob("*.gguf", name)) return fmt::format("is {}", gguf);
  if (matches_glob("*.nemo", name))
    return "is a NeMo 1 archive. Unpack it with tar, and name the folder with the mp_rank_* "
           "folders.";
  for (char const* const pattern :
       {"*.safetensors", "*.distcp", "*.safetensors.index.json", ".metadata", "config.json",
        "adapter_config.json", "latest_checkpointed_iteration.txt", "reshard.json"})
    if (matches_glob(pattern, name))
      return fmt::format("is one file of a checkpoint. Name its folder: {}.", folder);
  for (char const* const pattern : torch_patterns)
    if (matches_glob(pattern, name))
      return fmt::format(
          "is by its name a single torch.save file. Name the checkpoint's folder. {}", torch_files);
  std::vector<std::string> const names = {name};
  std::string found;
  if (ForeignFile const* const file = foreign_file_named(Names(names), found); file != nullptr)
    return fmt::format("is {}, {}", file->what, instead);
  for (char const* const pattern : archives)
    if (matches_glob(pattern, name))
      return "is an archive. Unpack it, and name the folder that holds the weights.";
  if (matches_glob("*.toml", name))
    return "is a TOML file, not a checkpoint. Give a job file to `reshard plan` or `reshard run`.";
  return "is neither a directory nor an HDF5 file. Name the checkpoint's folder.";
}

}  // namespace reshard
