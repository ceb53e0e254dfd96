#include "core/formats/dcp/describe.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "core/base/capture.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/dcp/item.hpp"
#include "core/formats/inspect_lines.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/megatron/mcore/root.hpp"
#include "core/formats/megatron/report.hpp"
#include "core/layout/pieces/join.hpp"

namespace reshard::dcp {
namespace {

namespace fs = std::filesystem;

/// More is useless to a reader.
constexpr std::size_t most_mismatches = 20;
/// Loaders check every chunk of a key: below this size, or above this number, loading takes long.
constexpr std::uint64_t small_chunk_bytes = std::uint64_t{1} << 20;
constexpr std::size_t many_chunks = 1'000'000;

/// Why the boxes of a tensor do not make it up, as the end of a sentence; "" when they do.
std::string fault_of(StoredTable const& metadata, StoredTensor const& tensor) {
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return "";
  AxisTable axes;
  std::vector<DomainAxis> domain;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d)
    domain.push_back({axes.add(fmt::format("dimension {}", d), tensor.shape[d]),
                      1,
                      {{0, tensor.shape[d], false}}});
  std::vector<Piece> pieces;
  std::set<std::pair<IndexLists::Id, IndexLists::Id>> seen;  // the same box twice is a replica
  for (StoredChunk const& chunk : metadata.chunks_of(tensor)) {
    if (!seen.emplace(chunk.offsets, chunk.sizes).second) continue;
    Piece piece;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d)
      piece.digits.push_back({domain[d].axis, tensor.shape[d], 1, metadata.offsets(chunk)[d],
                              metadata.sizes(chunk)[d], 1});
    pieces.push_back(std::move(piece));
  }
  auto const fault = tile(pieces, domain, axes);
  if (!fault) return "";
  return fault->holders == 0 ? fmt::format("no chunk holds {}", fault->where)
                             : fmt::format("{} chunks hold {}", fault->holders, fault->where);
}

/// The object in an item that is shorter than its elements, or why it is not one.
ItemObject object_in(Checkpoint const& checkpoint, ItemPlace const& item) try {
  auto found = object_in_item(File::open_for_reading(checkpoint.files[item.file]), item);
  if (found) return {"is " + found->text, found->torchao};
  return {
      "its item is shorter than its elements: the files are from different saves, or damaged. "
      "Fetch the checkpoint again"};
} catch (Error const& error) {
  return {std::string(error.sentence())};
}

bool has_common_object(StoredTable const& stored) {
  return std::ranges::find(stored.objects, common_key, &StoredObject::name) != stored.objects.end();
}

struct Totals {
  std::map<std::string, std::pair<std::int64_t, std::uint64_t>> dtypes;  ///< tensors and bytes
  std::vector<std::uint64_t> chunk_bytes;
  std::int64_t objects = 0;  ///< tensors whose items are shorter than their elements
};

Totals totals_of(StoredTable const& metadata) {
  Totals totals;
  for (StoredTensor const& tensor : metadata.tensors) {
    if (short_item(metadata, tensor)) {
      ++totals.objects;
      continue;
    }
    auto& [count, bytes] = totals.dtypes[std::string(reshard::name(tensor.dtype))];
    ++count;
    for (StoredChunk const& chunk : metadata.chunks_of(tensor)) {
      std::uint64_t elements = 1;
      for (Index const extent : metadata.sizes(chunk))
        elements *= static_cast<std::uint64_t>(extent);
      totals.chunk_bytes.push_back(elements * static_cast<std::uint64_t>(bits(tensor.dtype)) / 8);
      bytes += totals.chunk_bytes.back();
    }
  }
  std::sort(totals.chunk_bytes.begin(), totals.chunk_bytes.end());
  return totals;
}

char const* reason_for(Checkpoint const& checkpoint, bool by_backend) {
  FormatId const format = checkpoint.format->id();
  if (format == FormatId::torch_dist)
    return by_backend ? "metadata.json names the torch_dist backend"
                      : "its keys are Megatron-Core's";
  if (format == FormatId::fsdp_dtensor)
    return "it has a .metadata, no metadata.json, and keys model.module.*";
  if (checkpoint.names == NameOwner::megatron)
    return "it has a .metadata, args, and Megatron's keys behind model. (--ckpt-format torch_dcp)";
  return "it has a .metadata, and neither Megatron's files nor its common state";
}

class DcpReport {
 public:
  explicit DcpReport(fs::path const& path) {
    result_.json.set("path", path.string());
    line("path", path.string());
  }

  void format(Checkpoint const& checkpoint, bool by_backend) {
    bool const whole = checkpoint.place != (checkpoint.folder / metadata_name).string();
    add("format", checkpoint.format->name());
    add("reason", whole ? "its safetensors files hold boxes of tensors (DCP_SHARDING_INFO)"
                        : reason_for(checkpoint, by_backend));
    if (checkpoint.run.iteration) add("iteration", *checkpoint.run.iteration);
    add("folder", checkpoint.folder.string());
  }

  /// How it was cut when it was saved, and the model's sizes.
  void sizes(Checkpoint const& checkpoint, Json const& args) {
    SeenTensors seen;
    for (StoredTensor const& tensor : checkpoint.stored.tensors) {
      if (tensor.name.find(".linear_kv_up_proj.") != std::string::npos)
        seen.latent_attention = true;
      if (tensor.name == "embedding.word_embeddings.weight" && !tensor.shape.empty())
        seen.embedding_rows = tensor.shape.front();
    }
    result_.text += inspect_args(args, seen, result_.json);
  }

  void contents(Checkpoint const& checkpoint) {
    StoredTable const& metadata = checkpoint.stored;
    Totals const totals = totals_of(metadata);
    add("files", static_cast<std::int64_t>(checkpoint.files.size()));
    add("tensors", static_cast<std::int64_t>(metadata.tensors.size()));
    add("chunks", static_cast<std::int64_t>(metadata.chunks.size()));
    std::uint64_t const median =
        totals.chunk_bytes.empty() ? 0 : totals.chunk_bytes[totals.chunk_bytes.size() / 2];
    result_.json.set("median_chunk_bytes", median);
    line("median chunk", human_bytes(median));
    auto const matrices = std::ranges::count_if(metadata.tensors, [](StoredTensor const& tensor) {
      return megatron::is_adapter_matrix(tensor.name.text());
    });
    if (matrices > 0)
      add("adapter",
          megatron::adapter_text(static_cast<std::size_t>(matrices), metadata.tensors.size()));
    add("objects", static_cast<std::int64_t>(metadata.objects.size()));
    Json kinds = Json::object();
    std::vector<std::string> texts;
    for (auto const& [dtype, total] : totals.dtypes) {
      kinds.set(dtype, Json().set("tensors", total.first).set("bytes", total.second));
      texts.push_back(fmt::format("{}: {}, {}", dtype, counted(total.first, "tensor"),
                                  human_bytes(total.second)));
    }
    if (totals.objects > 0) {
      kinds.set("object", Json().set("tensors", totals.objects));
      texts.push_back(fmt::format("objects: {}", counted(totals.objects, "tensor")));
    }
    result_.json.set("dtypes", kinds);
    line("dtypes", fmt::format("{}", fmt::join(texts, "; ")));
    if (metadata.chunks.size() > many_chunks ||
        (median < small_chunk_bytes && metadata.chunks.size() > 1000))
      notes_.push_back(
          fmt::format("{}, of {} at the median: loading is slow. Rewrite it with larger "
                      "chunks",
                      counted(metadata.chunks.size(), "chunk"), human_bytes(median)));
    for (StoredTensor const& tensor : metadata.tensors)
      if (std::string const fault = fault_of(metadata, tensor);
          !fault.empty() && mismatches_.size() < most_mismatches)
        mismatches_.push_back(fmt::format("'{}': {}", tensor.name, fault));
    if (totals.objects > 0) objects(checkpoint, totals.objects);
  }

  /// Tensors of a class of another package: torch describes them by the dtype and shape that they
  /// represent. One of them is read.
  void objects(Checkpoint const& checkpoint, std::int64_t count) {
    for (StoredTensor const& tensor : checkpoint.stored.tensors) {
      auto const item = short_item(checkpoint.stored, tensor);
      if (!item) continue;
      ItemObject const found = object_in(checkpoint, *item);
      std::string const text = fmt::format("'{}': {}", tensor.name, found.text);
      of_torchao_ = found.torchao;
      if (!of_torchao_) return mismatches_.push_back(text);
      notes_.push_back(fmt::format(
          "{}. {} of {} hold fewer bytes than their elements take; only target.format = \"dcp\" "
          "carries such tensors, as they are",
          text, count, counted(checkpoint.stored.tensors.size(), "tensor")));
      return;
    }
  }

  /// State under names of parameters, and its possible uses.
  void trainer(Checkpoint const& checkpoint) {
    if (checkpoint.names == NameOwner::megatron) return;
    StateInventory const state = checkpoint.format->inventory(checkpoint, view_of(checkpoint));
    bool const faulty = state.optimizer.form == StateForm::by_layout;
    bool const named = state.optimizer.form == StateForm::by_weight;
    if (faulty) notes_.push_back(state.optimizer.fault + "; or drop optimizer state");
    add("optimizer",
        named    ? fmt::format("{}: one tensor for each parameter", fmt::join(state.slots, ", "))
        : faulty ? std::string("cannot be matched with weights")
        : state.optimizer ? "in files of single ranks; can only be dropped"
                          : "none");
    add("can_become",
        named
            ? "weights and optimizer: dcp, deepspeed; with the model's config.json and F32 weights "
              "torch_dist, megatron, fsdp_dtensor, hdf5. Only weights: huggingface, mistral"
        : of_torchao_
            ? "dcp, as it is"
            : "weights: huggingface, dcp, hdf5, deepspeed; with the model's config.json every "
              "format");
  }

  /// Every item must lie inside its file.
  void files(Checkpoint const& checkpoint) {
    StoredTable const& metadata = checkpoint.stored;
    std::vector<std::uint64_t> needed(checkpoint.files.size(), 0);
    auto const note = [&](ItemPlace const& item) {
      needed[item.file] = std::max(needed[item.file], item.offset_bytes + item.size_bytes);
    };
    for (StoredChunk const& chunk : metadata.chunks) note(chunk.item);
    for (StoredObject const& object : metadata.objects) note(object.item);
    for (std::size_t f = 0; f < needed.size(); ++f) {
      fs::path const& path = checkpoint.files[f];
      std::error_code error;
      bool const there = fs::is_regular_file(path, error);
      std::uint64_t const bytes = there ? fs::file_size(path, error) : 0;
      if (mismatches_.size() == most_mismatches || (there && !error && bytes >= needed[f]))
        continue;
      mismatches_.push_back(
          there ? fmt::format("{}: {} bytes, its items reach to byte {}: it was truncated",
                              path.string(), bytes, needed[f])
                : fmt::format("{}: is missing, or not a regular file", path.string()));
    }
  }

  void megatron(Checkpoint const& checkpoint) {
    if (checkpoint.names != NameOwner::megatron) return;
    StoredView const view = view_of(checkpoint);
    add("layers", view.traits.stacked ? "stacked" : "separate");
    parts(view);
    add("optimizer", optimizer_of(checkpoint.format->inventory(checkpoint, view)));
    if (checkpoint.format->id() != FormatId::torch_dist) return;
    if (!checkpoint.chunked.has_common_file && has_common_object(checkpoint.stored))
      notes_.push_back(
          "no common.pt: the common state is an object in the .distcp files "
          "(Megatron-Core 0.19 and later)");
    for (std::string& absent : absent_parts(checkpoint)) mismatches_.push_back(std::move(absent));
  }

  /// The other parts of a model next to its language model, and the prefix of the latter's names.
  void parts(StoredView const& view) {
    std::string const& root = view.traits.names.root;
    std::set<std::string_view> names;
    for (auto const& [name, tensor] : view.weights) names.insert(name);
    if (!root.empty()) add("root", root);
    for (auto const& [part, count] : megatron::parts_beside(names, root))
      add("part_" + part, counted(count, "tensor") + " beside the language model");
  }

  Inspection take() {
    for (auto const& [key, items] : {std::pair("mismatches", &mismatches_), {"notes", &notes_}})
      result_.json.set(key, Json(Json::Array(items->begin(), items->end())));
    result_.sound = mismatches_.empty();
    result_.mismatches = std::move(mismatches_);
    result_.notes = std::move(notes_);
    return std::move(result_);
  }

 private:
  static std::string optimizer_of(StateInventory const& state) {
    if (state.optimizer.form == StateForm::by_layout)
      return fmt::format("under keys that this version does not know ('{}'); can only be dropped",
                         state.optimizer.example);
    if (!state.optimizer) return "none";
    if (state.optimizer.form == StateForm::in_buffers && state.slots.empty())
      return "in one object for each group of ranks (dp_zero_gather_scatter); can be resharded";
    if (state.optimizer.form == StateForm::in_buffers)
      return fmt::format(
          "{}: in the buffers of the layout it was saved in (dp_reshardable); can be resharded",
          fmt::join(state.slots, ", "));
    return fmt::format("{}: stored with its weights, and resharded like them",
                       fmt::join(state.slots, ", "));
  }

  void line(std::string key, std::string_view value) {
    std::ranges::replace(key, '_', ' ');
    result_.text += inspect_line(key, value);
  }
  void add(std::string const& key, Json const& value) {
    line(key, value.text() != nullptr ? *value.text() : value.dump());
    result_.json.set(key, value);
  }

  Inspection result_;
  std::vector<std::string> mismatches_;
  std::vector<std::string> notes_;
  bool of_torchao_ = false;
};

}  // namespace

namespace {

/// Whether a job of ours kept Megatron's keys in a plain checkpoint, which only torch loads.
bool is_plain_by_record(std::filesystem::path const& folder) {
  std::string const format = seen("recorded format of", folder, [&] {
    std::string found;
    (void)capture([&] {
      if (auto const manifest = find_manifest(folder)) found = manifest->format;
    });
    return found;
  });
  return format == name(FormatId::dcp);
}

}  // namespace

std::vector<std::string> absent_parts(Checkpoint const& checkpoint) {
  std::vector<std::string> absent;
  if (checkpoint.format->id() != FormatId::torch_dist) return absent;
  bool const backend = sees_file(checkpoint.folder / backend_name);
  if (!backend && is_plain_by_record(checkpoint.folder)) return absent;
  if (!backend)
    absent.push_back(
        fmt::format("{} is missing: Megatron does not load the folder. Restore it from the "
                    "original, or convert the folder to torch_dist: the target has one.",
                    backend_name));
  if (!checkpoint.chunked.has_common_file && !has_common_object(checkpoint.stored))
    absent.push_back(fmt::format(
        "{} is missing, and no object has the common state: no args describe the model, and "
        "Megatron does not load the folder. Restore it from the original, or convert the folder "
        "with the model's config.json (source.config): the target has one.",
        common_name));
  return absent;
}

Inspection inspection(fs::path const& path, Checkpoint const& checkpoint, bool by_backend,
                      Json const& args) {
  DcpReport report(path);
  report.format(checkpoint, by_backend);
  report.sizes(checkpoint, args);
  report.contents(checkpoint);
  report.files(checkpoint);
  report.megatron(checkpoint);
  report.trainer(checkpoint);
  return report.take();
}

}  // namespace reshard::dcp
