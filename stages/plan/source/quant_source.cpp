#include "stages/plan/source/quant_source.hpp"

#include <memory>
#include <set>

#include "core/formats/megatron/mesh.hpp"
#include "stages/plan/source/source_names.hpp"

namespace reshard {
namespace {

using NameTable = std::unordered_map<std::string_view, FileTensor const*>;

FindTensor finder_over(std::shared_ptr<NameTable> table) {
  return [table = std::move(table)](std::string const& name) -> std::optional<FoundTensor> {
    auto const found = table->find(name);
    if (found == table->end()) return std::nullopt;
    return FoundTensor{found->second->dtype, found->second->shape};
  };
}

}  // namespace

FindTensor finder_over(std::span<FileTensor const> tensors) {
  auto table = std::make_shared<NameTable>();
  for (FileTensor const& tensor : tensors) table->emplace(tensor.name, &tensor);
  return finder_over(std::move(table));
}

FindTensor finder_over(HuggingFaceCheckpoint const& checkpoint) {
  auto table = std::make_shared<NameTable>();
  for (std::size_t f = 0; f < checkpoint.headers.size(); ++f)
    for (std::size_t const i : checkpoint.indexed[f])
      table->emplace(checkpoint.headers[f].tensors[i].name, &checkpoint.headers[f].tensors[i]);
  return finder_over(std::move(table));
}

bool QuantSource::any(MapFile const& map) const {
  std::set<std::string> words;  // what a name has at its end, behind the word for the weight
  for (MapQuant const& quant : map.quant)
    for (MapQuantPart const& part : quant.parts)
      if (part.name != "values" && !part.optional)
        words.insert(part.stored.starts_with("weight") ? part.stored.substr(6) : part.stored);
  bool found = false;
  each_stored(source_, view_, [&](std::string const& name, std::vector<Index> const&) {
    std::string_view const last = std::string_view(name).substr(
        name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1);
    for (std::string const& word : words)
      found = found || last.find(word) != std::string_view::npos;
  });
  return found;
}

void QuantSource::look(Model& model, Side const& side,
                       std::vector<PipelineChunk> const& chunks) const {
  QuantFinder finder(model, side);
  if (source_.huggingface) {
    finder.look({}, side.names(nullptr), finder_over(*source_.huggingface),
                source_.huggingface->folder.path.string());
  } else if (source_.dcp) {
    auto const& tensors = source_.dcp->metadata.tensors;
    auto const find = [&](std::string const& name) -> std::optional<FoundTensor> {
      auto const found = view_->weights.find(name);
      if (found == view_->weights.end()) return std::nullopt;
      return FoundTensor{tensors[found->second].dtype, tensors[found->second].shape};
    };
    finder.look({}, side.names(nullptr), find, source_.dcp->directory.folder.string());
  } else {
    auto const& checkpoint = *source_.megatron;
    auto const& sizes = checkpoint.classification.sizes;
    Mesh const mesh = megatron::mesh_of(sizes);
    std::vector<std::vector<StoredName>> names;
    for (PipelineChunk const& chunk : chunks) names.push_back(side.names(&chunk));
    for (std::size_t f = 0; f < checkpoint.headers.size(); ++f) {
      auto const& at = checkpoint.classification.places[f];
      for (std::size_t v = 0; v < checkpoint.headers[f].chunks.size(); ++v) {
        std::size_t const number =
            v * static_cast<std::size_t>(sizes.pp) + static_cast<std::size_t>(at.pp);
        if (number >= chunks.size()) continue;  // the catalogue says what is wrong with it
        finder.look({megatron::place_of(mesh, at), &chunks[number]}, names[number],
                    finder_over(checkpoint.headers[f].chunks[v].tensors),
                    checkpoint.directory.shards[f].model_path().string());
      }
    }
  }
  finder.apply(model);
}

}  // namespace reshard
