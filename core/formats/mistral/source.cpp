#include "core/formats/mistral/source.hpp"

#include <algorithm>

#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/mistral/params.hpp"

namespace reshard::mistral {

namespace fs = std::filesystem;
using huggingface::Folder;

FormatWords MistralFormat::words() const {
  return {.help = "Mistral's own files",
          .sign = "consolidated*.safetensors and params.json (Mistral)",
          .own = {huggingface::params_name}};
}

bool MistralFormat::probe(fs::path const& path) const {
  return sees_folder(path) && huggingface::has_consolidated(path);
}

/// config.json, which Mistral's repositories have beside Hugging Face's files, says more than
/// params.json. One with a vision tower describes tensors of other names.
Folder MistralFormat::opened(fs::path const& path, bool by_headers) const {
  Folder folder = huggingface::open_consolidated(path, by_headers);
  if (!folder.config.is_null() && folder.config.find("text_config") == nullptr) return folder;
  fs::path const params = readable_member(path, huggingface::params_name);
  std::string const place = params.string();
  folder.config = config_of_params(
      huggingface::parse_config(read_text_file(params, huggingface::largest_config_bytes), place),
      place);
  folder.config_text = folder.config.dump(2) + "\n";
  return folder;
}

Checkpoint MistralFormat::open(fs::path const& path, OpenChoice const& choice,
                               HeaderExchange const& exchange) const {
  Checkpoint checkpoint = HuggingFaceFormat::open(path, choice, exchange);
  // params.json states no dtype.
  auto const& tensors = checkpoint.stored.tensors;
  auto const embedding = std::ranges::find_if(
      tensors, [](auto const& one) { return one.name == "tok_embeddings.weight"; });
  if (embedding == tensors.end() || checkpoint.model.config.find("dtype") != nullptr ||
      checkpoint.model.config.find("torch_dtype") != nullptr)
    return checkpoint;
  std::string const dtype = embedding->dtype == DType::bf16  ? "bfloat16"
                            : embedding->dtype == DType::f16 ? "float16"
                            : embedding->dtype == DType::f32 ? "float32"
                                                             : "";
  if (dtype.empty()) return checkpoint;
  checkpoint.model.config.set("dtype", dtype);
  checkpoint.model.beside->config = checkpoint.model.config;
  checkpoint.model.beside->config_text = checkpoint.model.config.dump(2) + "\n";
  return checkpoint;
}

}  // namespace reshard::mistral
