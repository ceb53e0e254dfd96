#include "pipeline/publication/claim/own_names.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <vector>

#include "core/base/text/text.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Of a model as Hugging Face publishes it, and beside weights of other formats.
constexpr std::array<std::string_view, 36> model_files = {"config.json",
                                                          "generation_config.json",
                                                          "adapter_config.json",
                                                          "quantization_config.json",
                                                          "quantize_config.json",
                                                          "safetensors_metadata.json",
                                                          "hf_quant_config.json",
                                                          "preprocessor_config.json",
                                                          "video_preprocessor_config.json",
                                                          "processor_config.json",
                                                          "tokenizer_config.json",
                                                          "tokenizer.json",
                                                          "tokenizer.model",
                                                          "tokenizer.model.v*",
                                                          "tekken.json",
                                                          "special_tokens_map.json",
                                                          "added_tokens.json",
                                                          "vocab.json",
                                                          "vocab.txt",
                                                          "merges.txt",
                                                          "spiece.model",
                                                          "sentencepiece.bpe.model",
                                                          "*.tiktoken",
                                                          "chat_template.json",
                                                          "chat_template.jinja",
                                                          "model.safetensors",
                                                          "model-*-of-*.safetensors",
                                                          "model*.safetensors.index.json",
                                                          "shard-*-model-*-of-*.safetensors",
                                                          "adapter_model.safetensors",
                                                          "adapter_model-*-of-*.safetensors",
                                                          "adapter_model.safetensors.index.json",
                                                          "pytorch_model.bin",
                                                          "pytorch_model-*-of-*.bin",
                                                          "pytorch_model.bin.index.json",
                                                          "adapter_model.bin"};

/// Of one iteration, or of a folder without iterations.
constexpr std::array<std::string_view, 16> iteration_files = {"mp_rank_*/model_optim_rng.pt",
                                                              "mp_rank_*/model_rng.pt",
                                                              "mp_rank_*/distrib_optim.pt",
                                                              ".metadata",
                                                              "metadata.json",
                                                              "common.pt",
                                                              "*.distcp",
                                                              "part-*-of-*.h5",
                                                              "mp_rank_*_model_states.pt",
                                                              "layer_*-model_*_states.pt",
                                                              "*zero_pp_rank_*_states.pt",
                                                              "zero/optimizer_state.pt",
                                                              "zero/*/*.pt",
                                                              "integrity.json",
                                                              "reshard.json",
                                                              "SHA256SUMS"};
constexpr std::array<std::string_view, 4> iteration_folders = {"mp_rank_*", "zero", "zero/*",
                                                               "huggingface"};
constexpr std::array<std::string_view, 3> iterations = {"iter_*", "release", "global_step*"};
constexpr std::array<std::string_view, 5> root_files = {"latest_checkpointed_iteration.txt",
                                                        "latest", "latest_universal",
                                                        "zero_to_fp32.py", "zero_to_torch.py"};

/// Every part of the path fits its part of the pattern.
bool fits(std::string_view pattern, std::string_view path) {
  for (;;) {
    std::size_t const end = pattern.find('/');
    std::size_t const path_end = path.find('/');
    if (!matches_glob(pattern.substr(0, end), path.substr(0, path_end))) return false;
    if (end == std::string_view::npos || path_end == std::string_view::npos) return end == path_end;
    pattern.remove_prefix(end + 1);
    path.remove_prefix(path_end + 1);
  }
}

bool fits_one_of(std::span<std::string_view const> patterns, std::string_view path) {
  return std::ranges::any_of(patterns, [&](std::string_view one) { return fits(one, path); });
}

/// The path below its iteration, or the path itself.
std::string_view below_iteration(std::string_view path) {
  std::size_t const end = path.find('/');
  return end != std::string_view::npos && fits_one_of(iterations, path.substr(0, end))
             ? path.substr(end + 1)
             : path;
}

}  // namespace

bool is_checkpoint_file(std::string_view path) {
  if (fits_one_of(root_files, path)) return true;
  std::string_view below = below_iteration(path);
  if (fits_one_of(iteration_files, below)) return true;
  if (below.starts_with("huggingface/")) below.remove_prefix(below.find('/') + 1);
  return fits_one_of(model_files, below);
}

bool is_checkpoint_folder(std::string_view path) {
  return fits_one_of(iterations, path) || fits_one_of(iteration_folders, below_iteration(path));
}

std::set<std::string> files_to_write(TargetDraft const& draft) {
  std::set<std::string> files;
  for (TargetFile const& file : draft.files) files.insert(file.path.generic_string());
  for (TextFile const& text : draft.texts) files.insert(text.path.generic_string());
  if (draft.reference)
    for (std::string const& name : draft.reference->sidecars)
      files.insert((draft.reference_to / name).generic_string());
  for (SideCopy const& side : draft.side_copies) {
    files.insert(side.to.generic_string());
    std::error_code ended;  // a file, or gone: then copying it says so
    for (fs::recursive_directory_iterator it(side.from, ended);
         !ended && it != fs::recursive_directory_iterator(); it.increment(ended))
      files.insert((side.to / it->path().lexically_relative(side.from)).generic_string());
  }
  return files;
}

}  // namespace reshard
