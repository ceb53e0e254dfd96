#include "stages/plan/source/source_side.hpp"

#include <algorithm>
#include <unordered_map>

#include "core/formats/megatron/mesh.hpp"
#include "stages/plan/source/dequantised.hpp"
#include "stages/plan/source/source_names.hpp"

namespace reshard {
namespace {

using NameTable = std::unordered_map<std::string_view, std::size_t>;

/// Collects blobs and pieces of one side; explains every stored tensor.
class Collector {
 public:
  Collector(Model const& model, Side const& side, std::string const& map_names, bool dequantise)
      : model_(model), side_(side), map_names_(map_names), dequantise_(dequantise) {
    catalog_.tensors.resize(model.tensors().size());
  }

  void add_file(std::string const& path) { catalog_.files.push_back(path); }

  /// The stored tensors of one place of one file against the names that the map makes for it.
  void add_place(std::uint32_t file, SidePlace const& place, std::vector<StoredName> const& names,
                 std::span<FileTensor const> tensors) {
    NameTable table;
    for (std::size_t i = 0; i < tensors.size(); ++i) table.emplace(tensors[i].name, i);
    std::vector<bool> explained(tensors.size(), false);
    auto const take = [&](std::string const& name) -> std::optional<StoredFile> {
      auto const found = table.find(name);
      if (found == table.end()) return std::nullopt;
      explained[found->second] = true;
      return StoredFile{file, &tensors[found->second]};
    };
    auto const find_tensor = [&](std::string const& name) -> std::optional<FoundTensor> {
      auto const found = table.find(name);
      if (found == table.end()) return std::nullopt;
      return FoundTensor{tensors[found->second].dtype, tensors[found->second].shape};
    };
    for (StoredName const& name : names) {
      if (add_dequantised(place, name, find_tensor, take)) continue;
      std::size_t const found = find(file, name, table);
      if (found == no_tensor) continue;
      explained[found] = true;
      add_tensor(file, place, name, tensors[found]);
    }
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (!explained[i] && !side_.dropped(tensors[i].name))
        unexplained(file, tensors[i].name, names);
  }

  void add_tensor(std::uint32_t file, SidePlace const& place, StoredName const& name,
                  FileTensor const& tensor) {
    check_stored(catalog_.files[file], tensor.name, tensor.dtype, tensor.shape,
                 side_.layout(name.entry, place).file_shape, side_, name.entry, model_);
    std::vector<Piece> pieces = side_.pieces(name, place);
    if (!tensor.strides.empty()) restride(pieces, tensor.shape, tensor.strides);
    catalog_.add({file, tensor.offset_bytes, tensor.dtype, tensor.name}, std::move(pieces),
                 name.copy);
  }

  /// A weight whose parts are there, as computed values; false when it is stored as it is. `take`
  /// gives the parts.
  bool add_dequantised(SidePlace const& place, StoredName const& name, FindTensor const& find,
                       std::function<std::optional<StoredFile>(std::string const&)> const& take) {
    if (model_.schemes().empty() || !dequantise_) return false;
    auto const match = match_quantised(model_, side_, name, place, find);
    if (!match) return false;
    EntryLayout const layout = side_.quantised_layout(name.entry, place);
    std::uint32_t const file = catalog_.add_view(
        dequantised(model_.schemes()[match->scheme], *match, name.name, layout.layout.shape, take));
    std::vector<Piece> pieces = layout.layout.pieces;
    side_.add_name_digits(name, place, pieces);
    catalog_.add({file, 0, DType::bf16, name.name}, std::move(pieces), name.copy);
    return true;
  }

  [[noreturn]] void unexplained(std::uint32_t file, std::string const& tensor,
                                std::vector<StoredName> const& names) const {
    fail_unexplained(catalog_.files[file], tensor, names, model_, map_names_);
  }

  Catalog take() { return std::move(catalog_); }

 private:
  static constexpr std::size_t no_tensor = static_cast<std::size_t>(-1);

  std::size_t find(std::uint32_t file, StoredName const& name, NameTable const& table) const {
    std::vector<std::string const*> hits;
    std::size_t result = no_tensor;
    auto const look = [&](std::string const& candidate) {
      auto const found = table.find(candidate);
      if (found == table.end() || found->second == result) return;
      hits.push_back(&candidate);
      result = found->second;
    };
    look(name.name);
    for (std::string const& alias : name.aliases) look(alias);
    if (hits.size() > 1)
      fail(ErrorKind::source, "{}: '{}' and '{}' are two names of one tensor. Remove one of them.",
           catalog_.files[file], *hits[0], *hits[1]);
    if (result == no_tensor && !name.copy)
      fail(
          ErrorKind::source,
          "{}: lacks '{}', which {} expects here. The save was cut short, or the parallel sizes or the map are another checkpoint's: choose another "
          "save, or check model.map.",
          catalog_.files[file], name.name, side_.entry_place(name.entry));
    return result;
  }

  Model const& model_;
  Side const& side_;
  std::string map_names_;
  bool dequantise_;
  Catalog catalog_;
};

bool ends_with(std::string_view text, std::string_view end) { return text.ends_with(end); }

}  // namespace

void restride(std::vector<Piece>& pieces, std::vector<Index> const& shape,
              std::vector<Index> const& strides) {
  std::vector<Index> packed(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) packed[d - 1] = packed[d] * shape[d];
  auto const moved = [&](Index stride) {
    for (std::size_t d = shape.size(); d-- > 0;)
      if (shape[d] > 1 && stride % packed[d] == 0 && stride < packed[d] * shape[d])
        return stride / packed[d] * strides[d];
    return stride;
  };
  for (Piece& piece : pieces) {
    for (PieceDigit& digit : piece.digits)
      if (digit.count > 1) digit.stride = moved(digit.stride);
    for (PieceCopy& copy : piece.copies) copy.stride = moved(copy.stride);
    Index offset = 0;
    Index left = piece.offset;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      offset += left / packed[d] * strides[d];
      left %= packed[d];
    }
    piece.offset = offset;
  }
}

MegatronTraits megatron_traits(MegatronCheckpoint const& checkpoint) {
  MegatronTraits traits{"", "", "mtp_model_layer", 0};
  bool te_extra = false;
  for (megatron::ShardHeader const& header : checkpoint.headers) {
    for (megatron::ChunkTable const& chunk : header.chunks) {
      for (FileTensor const& tensor : chunk.tensors) {
        std::string_view const name = tensor.name;
        if (ends_with(name, "layer_norm_weight")) traits.spec = "te";
        if (traits.spec.empty() && ends_with(name, ".input_layernorm.weight") &&
            name.find("linear") == std::string_view::npos)
          traits.spec = "local?";
        if (name.find(".experts.local_experts.") != std::string_view::npos)
          traits.form = "sequential";
        if (ends_with(name, ".experts.weight1")) traits.form = "flat";
        if (ends_with(name, ".experts.linear_fc1.weight0")) traits.form = "grouped";
        if (name.starts_with("mtp.") && name.find(".transformer_layer.") != std::string_view::npos)
          traits.mtp_block = "transformer_layer";
        if (name == "embedding.word_embeddings.weight" && !tensor.shape.empty())
          traits.padded_vocab = tensor.shape[0] * checkpoint.classification.sizes.tp;
      }
      for (megatron::ExtraEntry const& extra : chunk.extras)
        te_extra = te_extra || extra.kind == megatron::ExtraKind::uint8_tensor ||
                   extra.kind == megatron::ExtraKind::bytes_io;
    }
  }
  if (traits.spec != "te")
    traits.spec = te_extra ? "te" : "local";  // MLA layers keep their norm apart under both
  if (traits.form.empty()) traits.form = traits.spec == "te" ? "grouped" : "sequential";
  return traits;
}

std::vector<PipelineChunk> source_chunks(MegatronCheckpoint const& checkpoint, Index decoder_layers,
                                         Index mtp_layers) {
  PipelineSpec spec =
      megatron::pipeline_spec(checkpoint.headers.front().args, checkpoint.classification.sizes);
  spec.decoder_layers = static_cast<int>(decoder_layers);
  spec.mtp_layers = static_cast<int>(mtp_layers);
  try {
    return pipeline_chunks(spec);
  } catch (Error const& error) {
    throw Error(ErrorKind::source, error.sentence())
        .in(checkpoint.directory.iteration_dir.string() + ", args");
  }
}

Catalog megatron_catalog(Model& model, Side const& side, MegatronCheckpoint const& checkpoint,
                         std::vector<PipelineChunk> const& chunks, std::vector<int> const& may_lack,
                         std::string const& map_names, bool dequantise) {
  auto const& sizes = checkpoint.classification.sizes;
  Mesh const mesh = megatron::mesh_of(sizes);
  auto const vpp = static_cast<std::size_t>(sizes.vpp);
  auto const chunk_of = [&](std::size_t file, std::size_t v) -> PipelineChunk const& {
    return chunks[v * static_cast<std::size_t>(sizes.pp) +
                  static_cast<std::size_t>(checkpoint.classification.places[file].pp)];
  };
  auto const check_chunks = [&](std::size_t file) {
    if (checkpoint.headers[file].chunks.size() != vpp)
      fail(
          ErrorKind::source,
          "{}: holds {} model chunks, the args say {} per pipeline rank. The file belongs to another run: restore this run's own.",
          checkpoint.directory.shards[file].model_path().string(),
          checkpoint.headers[file].chunks.size(), vpp);
  };
  std::vector<bool> found;
  std::vector<std::vector<StoredName>> names;
  for (PipelineChunk const& chunk : chunks) names.push_back(side.names(&chunk));
  for (std::size_t f = 0; f < checkpoint.headers.size(); ++f) {
    check_chunks(f);
    for (std::size_t v = 0; v < vpp; ++v) {
      NameTable stored;
      for (FileTensor const& tensor : checkpoint.headers[f].chunks[v].tensors)
        stored.emplace(tensor.name, 0);
      auto const is_there = [&stored](std::string const& name) { return stored.contains(name); };
      note_found(model, side, names[static_cast<std::size_t>(&chunk_of(f, v) - chunks.data())],
                 is_there, found);
    }
  }
  settle_optional(model, may_lack, found);
  names.clear();
  for (PipelineChunk const& chunk : chunks) names.push_back(side.names(&chunk));
  Collector collector(model, side, map_names, dequantise);
  for (megatron::Shard const& shard : checkpoint.directory.shards)
    collector.add_file(shard.model_path().string());
  for (std::size_t f = 0; f < checkpoint.headers.size(); ++f) {
    auto const& at = checkpoint.classification.places[f];
    for (std::size_t v = 0; v < vpp; ++v) {
      PipelineChunk const& chunk = chunk_of(f, v);
      SidePlace const place{megatron::place_of(mesh, at), &chunk};
      collector.add_place(static_cast<std::uint32_t>(f), place,
                          names[static_cast<std::size_t>(&chunk - chunks.data())],
                          checkpoint.headers[f].chunks[v].tensors);
    }
  }
  return collector.take();
}

namespace {
/// Only an index can say that a tensor should be there.
[[noreturn]] void fail_lacking(HuggingFaceCheckpoint const& checkpoint, StoredName const& name,
                               Side const& side) {
  auto const& index = checkpoint.folder.weight_map;
  bool const listed_there = std::any_of(index.begin(), index.end(),
                                        [&](auto const& item) { return item.first == name.name; });
  fail(
      ErrorKind::source, "{}: lacks '{}', which {} expects. {}.", checkpoint.folder.path.string(),
      name.name, side.entry_place(name.entry),
      listed_there
          ? "The index lists it, so the download is incomplete: download the folder again"
          : "Weights and config.json are two models', or the map does not know this form of the model: compare both, or name another map with "
            "model.map");
}
}  // namespace

Catalog huggingface_catalog(Model& model, Side const& side, HuggingFaceCheckpoint const& checkpoint,
                            std::string const& map_names, bool dequantise) {
  struct Place {
    std::uint32_t file;
    FileTensor const* tensor;
  };
  std::unordered_map<std::string_view, std::size_t> stored;
  std::vector<Place> places;
  for (std::size_t f = 0; f < checkpoint.headers.size(); ++f)
    for (std::size_t const i : checkpoint.indexed[f]) {
      FileTensor const& tensor = checkpoint.headers[f].tensors[i];
      stored.emplace(tensor.name, places.size());
      places.push_back({static_cast<std::uint32_t>(f), &tensor});
    }
  std::vector<bool> found;
  note_found(
      model, side, side.names(nullptr),
      [&stored](std::string const& name) { return stored.contains(name); }, found);
  settle_optional(model, side.optional_tensors(), found);
  std::vector<StoredName> const names = side.names(nullptr);
  Collector collector(model, side, map_names, dequantise);
  for (auto const& file : checkpoint.folder.files)
    collector.add_file((checkpoint.folder.path / file).string());
  std::vector<bool> explained(places.size(), false);
  auto const take = [&](std::string const& name) -> std::optional<StoredFile> {
    auto const at = stored.find(name);
    if (at == stored.end()) return std::nullopt;
    explained[at->second] = true;
    return StoredFile{places[at->second].file, places[at->second].tensor};
  };
  auto const find_tensor = [&](std::string const& name) -> std::optional<FoundTensor> {
    auto const at = stored.find(name);
    if (at == stored.end()) return std::nullopt;
    return FoundTensor{places[at->second].tensor->dtype, places[at->second].tensor->shape};
  };
  for (StoredName const& name : names) {
    if (collector.add_dequantised({}, name, find_tensor, take)) continue;
    auto at = stored.find(name.name);
    for (std::size_t i = 0; at == stored.end() && i < name.aliases.size(); ++i)
      at = stored.find(name.aliases[i]);
    if (at == stored.end()) {
      if (name.copy) continue;
      fail_lacking(checkpoint, name, side);
    }
    explained[at->second] = true;
    collector.add_tensor(places[at->second].file, {}, name, *places[at->second].tensor);
  }
  for (std::size_t i = 0; i < places.size(); ++i)
    if (!explained[i] && !side.dropped(places[i].tensor->name))
      collector.unexplained(places[i].file, places[i].tensor->name, names);
  return collector.take();
}

}  // namespace reshard
