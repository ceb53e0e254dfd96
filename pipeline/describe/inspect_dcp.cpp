#include "pipeline/describe/inspect_dcp.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/text.hpp"
#include "core/layout/join.hpp"
#include "stages/plan/source/dist_source.hpp"
#include "stages/read/open_dcp.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// More is of no use to a reader.
constexpr std::size_t most_mismatches = 20;
/// Loaders look at every chunk of a key: below this size, or above this number, loading takes long.
constexpr std::uint64_t small_chunk_bytes = std::uint64_t{1} << 20;
constexpr std::size_t many_chunks = 1'000'000;

/// Why the boxes of a tensor do not make it up, as the end of a sentence; "" when they do.
std::string fault_of(dcp::Metadata const& metadata, dcp::StoredTensor const& tensor) {
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return "";
  AxisTable axes;
  std::vector<DomainAxis> domain;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d)
    domain.push_back({axes.add(fmt::format("dimension {}", d), tensor.shape[d]),
                      1,
                      {{0, tensor.shape[d], false}}});
  std::vector<Piece> pieces;
  std::set<std::pair<dcp::IndexLists::Id, dcp::IndexLists::Id>>
      seen;  // the same box twice is a replica
  for (dcp::Chunk const& chunk : metadata.chunks_of(tensor)) {
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

struct Totals {
  std::map<std::string, std::pair<std::int64_t, std::uint64_t>> dtypes;  ///< tensors and bytes
  std::vector<std::uint64_t> chunk_bytes;
};

Totals totals_of(dcp::Metadata const& metadata) {
  Totals totals;
  for (dcp::StoredTensor const& tensor : metadata.tensors) {
    auto& [count, bytes] = totals.dtypes[std::string(name(tensor.dtype))];
    ++count;
    for (dcp::Chunk const& chunk : metadata.chunks_of(tensor)) {
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

class DcpReport {
 public:
  explicit DcpReport(fs::path const& path) {
    result_.json.set("path", path.string());
    line("path", path.string());
  }

  void format(DcpCheckpoint const& checkpoint) {
    struct Words {
      char const* name;
      char const* reason;
    };
    Words words{"dcp", "it has a .metadata, and neither files nor a common state of Megatron's"};
    if (checkpoint.flavour == dcp::Flavour::torch_dist)
      words = {"torch_dist", checkpoint.directory.has_backend_file
                                 ? "metadata.json names the torch_dist backend"
                                 : "its keys are Megatron-Core's"};
    if (checkpoint.flavour == dcp::Flavour::fsdp_dtensor)
      words = {"fsdp_dtensor", "it has a .metadata, no metadata.json, and keys model.module.*"};
    if (checkpoint.container == TensorContainer::safetensors)
      words = {"dcp", "its safetensors files hold boxes of tensors (DCP_SHARDING_INFO)"};
    add("format", words.name);
    add("reason", words.reason);
    if (checkpoint.directory.iteration) add("iteration", *checkpoint.directory.iteration);
    add("folder", checkpoint.directory.folder.string());
  }

  void contents(DcpCheckpoint const& checkpoint) {
    dcp::Metadata const& metadata = checkpoint.metadata;
    Totals const totals = totals_of(metadata);
    add("files", static_cast<std::int64_t>(metadata.files.size()));
    add("tensors", static_cast<std::int64_t>(metadata.tensors.size()));
    add("chunks", static_cast<std::int64_t>(metadata.chunks.size()));
    std::uint64_t const median =
        totals.chunk_bytes.empty() ? 0 : totals.chunk_bytes[totals.chunk_bytes.size() / 2];
    result_.json.set("median_chunk_bytes", median);
    line("median chunk", human_bytes(median));
    add("objects", static_cast<std::int64_t>(metadata.objects.size()));
    Json kinds = Json::object();
    std::vector<std::string> texts;
    for (auto const& [dtype, total] : totals.dtypes) {
      kinds.set(dtype, Json().set("tensors", total.first).set("bytes", total.second));
      texts.push_back(
          fmt::format("{}: {} tensors, {}", dtype, total.first, human_bytes(total.second)));
    }
    result_.json.set("dtypes", kinds);
    line("dtypes", fmt::format("{}", fmt::join(texts, "; ")));
    if (metadata.chunks.size() > many_chunks ||
        (median < small_chunk_bytes && metadata.chunks.size() > 1000))
      notes_.push_back(fmt::format(
          "{} chunks of {} at the median: loading takes long; rewrite with larger chunks",
          metadata.chunks.size(), human_bytes(median)));
    for (dcp::StoredTensor const& tensor : metadata.tensors)
      if (std::string const fault = fault_of(metadata, tensor);
          !fault.empty() && mismatches_.size() < most_mismatches)
        mismatches_.push_back(fmt::format("'{}': {}", tensor.name, fault));
  }

  /// Every item must lie inside its file.
  void files(DcpCheckpoint const& checkpoint) {
    dcp::Metadata const& metadata = checkpoint.metadata;
    std::vector<std::uint64_t> needed(metadata.files.size(), 0);
    auto const note = [&](dcp::ItemPlace const& item) {
      needed[item.file] = std::max(needed[item.file], item.offset_bytes + item.size_bytes);
    };
    for (dcp::Chunk const& chunk : metadata.chunks) note(chunk.item);
    for (dcp::StoredObject const& object : metadata.objects) note(object.item);
    for (std::size_t f = 0; f < needed.size(); ++f) {
      fs::path const path = checkpoint.directory.folder / metadata.files[f];
      std::error_code error;
      bool const there = fs::is_regular_file(path, error);
      std::uint64_t const bytes = there ? fs::file_size(path, error) : 0;
      if (mismatches_.size() == most_mismatches || (there && !error && bytes >= needed[f]))
        continue;
      mismatches_.push_back(
          there ? fmt::format("{}: {} bytes, its items reach to byte {}: it was cut short",
                              path.string(), bytes, needed[f])
                : fmt::format("{}: is missing, or no plain file", path.string()));
    }
  }

  void megatron(DcpCheckpoint const& checkpoint) {
    if (checkpoint.flavour == dcp::Flavour::plain) return;
    DistView const view = look_at(checkpoint, "");
    add("layers", view.stacked ? "stacked" : "separate");
    std::string state = view.states.empty()
                            ? "none"
                            : fmt::format("{}: follows its weights", fmt::join(view.states, ", "));
    if (!view.fixed_state.empty()) state = "bound to the layout it was saved in (dp_reshardable)";
    add("optimizer", state);
    if (checkpoint.flavour != dcp::Flavour::torch_dist || checkpoint.directory.has_common_file)
      return;
    auto const& objects = checkpoint.metadata.objects;
    if (std::any_of(objects.begin(), objects.end(),
                    [](dcp::StoredObject const& object) { return object.name == dcp::common_key; }))
      notes_.push_back("no common.pt: the common state is an item (Megatron-Core 0.19 and later)");
    else
      mismatches_.push_back(
          "neither common.pt nor an item of common state: nothing says what model it is, and Megatron does not load it");
  }

  Inspection take() {
    list("mismatches", "mismatch", mismatches_);
    list("notes", "note", notes_);
    result_.sound = mismatches_.empty();
    return std::move(result_);
  }

 private:
  void line(std::string_view key, std::string_view value) {
    result_.text += fmt::format("{:<18}{}\n", key, value);
  }
  void add(std::string const& key, Json const& value) {
    line(key, value.text() != nullptr ? *value.text() : value.dump());
    result_.json.set(key, value);
  }
  void list(std::string const& key, std::string_view word, std::vector<std::string> const& items) {
    result_.json.set(key, Json(Json::Array(items.begin(), items.end())));
    for (std::string const& item : items) line(word, item);
  }

  Inspection result_;
  std::vector<std::string> mismatches_;
  std::vector<std::string> notes_;
};

Inspection report(fs::path const& path, DcpCheckpoint const& checkpoint) {
  DcpReport report(path);
  report.format(checkpoint);
  report.contents(checkpoint);
  report.files(checkpoint);
  report.megatron(checkpoint);
  return report.take();
}

}  // namespace

Inspection inspect_dcp(fs::path const& path) {
  DcpCheckpoint checkpoint;
  checkpoint.directory = dcp::open_directory(path);
  checkpoint.metadata =
      dcp::read_metadata(File::open_for_reading(checkpoint.directory.folder / dcp::metadata_name));
  checkpoint.flavour = dcp::flavour_of(checkpoint.directory, checkpoint.metadata);
  return report(path, checkpoint);
}

Inspection inspect_boxed_safetensors(fs::path const& path) {
  std::vector<fs::path> const files = safetensors_files(path);
  std::vector<safetensors::Header> headers;
  for (fs::path const& file : files)
    headers.push_back(safetensors::read_header(File::open_for_reading(file)));
  return report(path, boxed_checkpoint(path, files, headers));
}

}  // namespace reshard
