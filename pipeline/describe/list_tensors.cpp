#include "core/base/files/file.hpp"
#include "core/base/text/shown_name.hpp"
#include "pipeline/describe/look.hpp"
#include "pipeline/verify/digest.hpp"
#include "pipeline/verify/rank_state_look.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

Json shape_json(std::vector<Index> const& shape) {
  Json::Array extents;
  for (Index const extent : shape) extents.emplace_back(extent);
  return Json(std::move(extents));
}

class Lister {
 public:
  explicit Lister(std::vector<std::string> notes) : notes_(std::move(notes)) {}

  void note(std::string text) { notes_.push_back(std::move(text)); }

  void add(std::string const& place, FileTensor const& tensor, std::string const& file,
           Json extra) {
    Json item;
    item.set("name", tensor.name.text())
        .set("dtype", name(tensor.dtype))
        .set("shape", shape_json(tensor.shape))
        .set("file", file);
    item.set("offset", tensor.offset_bytes).set("bytes", tensor.size_bytes);
    if (auto const* members = extra.members())
      for (auto const& [key, value] : *members) item.set(key, value);
    items_.push_back(std::move(item));
    text_ += fmt::format("{:<9}{:<24}{:>12}  {}  {}\n", name(tensor.dtype),
                         shape_json(tensor.shape).dump(), human_bytes(tensor.size_bytes), place,
                         shown_name(tensor.name));
  }

  /// `shape`: of a tensor that is an object of a class; an object that is no tensor has none.
  void add_object(std::string const& key, std::string const& file, std::uint64_t bytes,
                  std::vector<Index> const* shape = nullptr) {
    Json item = Json().set("name", key).set("dtype", "object").set("file", file);
    item.set("bytes", bytes);
    if (shape != nullptr) item.set("shape", shape_json(*shape));
    items_.push_back(std::move(item));
    text_ += fmt::format("{:<9}{:<24}{:>12}  {:>5}         {}\n", "object",
                         shape != nullptr ? shape_json(*shape).dump() : "", human_bytes(bytes), "",
                         shown_name(key));
  }

  void add_logical(Model const& model, Catalog const& catalog, std::size_t t) {
    LogicalTensor const& tensor = model.tensors()[t];
    TensorPieces const& pieces = catalog.tensors[t];
    std::string axes;
    std::vector<Index> shape;
    Json::Array names;
    for (DomainAxis const& axis : model.domain(tensor)) {
      Index count = 0;
      for (Run const& run : axis.runs) count += run.end - run.begin;
      shape.push_back(count);
      std::string const& axis_name = model.axes()[axis.axis].name;
      names.emplace_back(axis_name);
      axes += fmt::format("{}{} {}", axes.empty() ? "" : " · ", axis_name, count);
    }
    bool const stored = !pieces.empty();  // without elements a tensor may have no box anywhere
    DType const dtype = stored ? catalog.blobs[pieces.blob(0)].dtype : DType::u8;
    std::string_view const dtype_name = stored ? name(dtype) : "-";
    auto const bytes = static_cast<std::uint64_t>(model.volume(tensor)) *
                       static_cast<std::uint64_t>(bits(dtype)) / 8;
    Json item;
    item.set("name", tensor.name.text())
        .set("dtype", stored ? Json(dtype_name) : Json())
        .set("shape", shape_json(shape))
        .set("axes", Json(std::move(names)))
        .set("bytes", bytes);
    item.set("pieces", static_cast<std::int64_t>(pieces.size()));
    items_.push_back(std::move(item));
    text_ += fmt::format("{:<9}{:>12}  {:>7} {:<6}  {:<20} {}\n", dtype_name, human_bytes(bytes),
                         pieces.size(), pieces.size() == 1 ? "piece" : "pieces", tensor.name, axes);
  }

  TensorList take(fs::path const& path, std::string_view format, std::string_view kind) {
    TensorList result;
    result.json.set("path", path.string())
        .set("format", format)
        .set("kind", kind)
        .set("tensors", Json(std::move(items_)));
    result.text = std::move(text_);
    result.notes = std::move(notes_);
    return result;
  }

 private:
  std::vector<std::string> notes_;
  Json::Array items_;
  std::string text_;
};

std::uint64_t bytes_of(StoredTensor const& tensor) {
  std::uint64_t elements = 1;
  for (Index const extent : tensor.shape) elements *= static_cast<std::uint64_t>(extent);
  return elements * static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
}

/// The file of an item, relative to the checkpoint where it lies in it.
std::string file_name(Checkpoint const& source, std::uint32_t file) {
  fs::path const relative = source.files[file].lexically_relative(source.folder);
  bool const inside = !relative.empty() && relative != "." && *relative.begin() != "..";
  return inside ? relative.string() : source.files[file].filename().string();
}

void list_chunks(Lister& lister, Checkpoint const& source) {
  StoredTable const& stored = source.stored;
  for (StoredTensor const& tensor : stored.tensors) {
    if (auto const item = short_item(stored, tensor); item && source.chunked.item_files) {
      lister.add_object(std::string(tensor.name.text()), file_name(source, item->file),
                        item->size_bytes, &tensor.shape.sizes());
      continue;
    }
    std::string const file = tensor.chunk_count == 0
                                 ? ""
                                 : file_name(source, stored.chunks[tensor.first_chunk].item.file);
    lister.add(fmt::format("{:>5} {:<6}", tensor.chunk_count,
                           tensor.chunk_count == 1 ? "chunk" : "chunks"),
               {tensor.name, tensor.dtype, tensor.shape, {}, 0, bytes_of(tensor)}, file,
               Json().set("chunks", static_cast<std::int64_t>(tensor.chunk_count)));
  }
  for (StoredObject const& object : stored.objects)
    lister.add_object(object.name, file_name(source, object.item.file), object.item.size_bytes);
}

FileTensor whole_tensor(Checkpoint const& source, std::size_t t) {
  StoredTensor const& tensor = source.stored.tensors[t];
  ItemPlace const& item = source.stored.chunks[tensor.first_chunk].item;
  return {tensor.name, tensor.dtype, tensor.shape, {}, item.offset_bytes, item.size_bytes};
}

void list_whole(Lister& lister, Checkpoint const& source) {
  for (std::size_t t = 0; t < source.stored.tensors.size(); ++t) {
    std::string const file =
        file_name(source, source.stored.chunks[source.stored.tensors[t].first_chunk].item.file);
    Json extra;
    if (!source.logical.labels.empty())
      extra.set("axes", Json(Json::Array(source.logical.labels[t].axes.begin(),
                                         source.logical.labels[t].axes.end())));
    lister.add(file, whole_tensor(source, t), file, std::move(extra));
  }
}

/// {"tp": 0, "pp": 1, "ep": 0, "chunk": 0}
Json coordinates(Checkpoint const& source, SharePlace const& place) {
  Json result;
  auto const& axes = source.shares.file_mesh.axes();
  for (std::size_t a = 0; a < axes.size(); ++a) result.set(axes[a].name, place.file_at[a]);
  return result.set("chunk", place.chunk_in_file);
}

void list_shares(Lister& lister, Checkpoint const& source) {
  for (SharePlace const& place : source.shares.places)
    for (std::size_t t = place.first_tensor; t < place.first_tensor + place.tensor_count; ++t)
      lister.add(place.label, whole_tensor(source, t), file_name(source, place.file),
                 coordinates(source, place));
}

void list_stored(Lister& lister, Checkpoint const& source) {
  switch (source.storage) {
    case Storage::chunks: return list_chunks(lister, source);
    case Storage::whole: return list_whole(lister, source);
    case Storage::shares: return list_shares(lister, source);
  }
}

}  // namespace

TensorList list_tensors(ListQuery const& query, Comm const& comm) {
  OpenChoice choice;
  choice.without_heads = query.listing == Listing::stored;
  Checkpoint source = open_query(query, choice, comm);
  std::string_view const format = source.format->name();
  std::vector<std::string> notes;
  if (!source.run.newer_saves.empty()) notes.push_back(source.run.newer_saves);
  Lister lister(std::move(notes));
  if (query.listing == Listing::stored) {
    list_stored(lister, source);
    return lister.take(query.path, format, "stored");
  }
  if (RankStateLook look = look_at_rank_states(query.path, source, comm); look.opened)
    source = *std::move(look.opened);
  DigestQuery logical{query};
  std::vector<std::string> ignored;  // `digest` explains what is not followed
  (void)follow_own_manifest(logical, source, ignored, comm);
  JobPlan const plan = open_logical(source, logical, comm);
  if (!plan.listing.prefix_note.empty()) lister.note(plan.listing.prefix_note);
  for (std::size_t t = 0; t < plan.model->tensors().size(); ++t)
    if (plan.model->exists(TensorId(t))) lister.add_logical(*plan.model, plan.source, t);
  return lister.take(query.path, format, "logical");
}

}  // namespace reshard
