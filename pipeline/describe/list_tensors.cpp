#include "core/base/file.hpp"
#include "core/base/shown_name.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/describe/look.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/read/open_dcp.hpp"
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
  void add(std::string const& place, FileTensor const& tensor, std::string const& file,
           Json extra) {
    Json item;
    item.set("name", tensor.name)
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

  void add_object(std::string const& key, std::string const& file, std::uint64_t bytes) {
    items_.push_back(
        Json().set("name", key).set("dtype", "object").set("file", file).set("bytes", bytes));
    text_ += fmt::format("{:<9}{:<24}{:>12}  {:>5}         {}\n", "object", "", human_bytes(bytes),
                         "", shown_name(key));
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
    bool const stored =
        !pieces.blobs.empty();  // without elements a tensor may have no box anywhere
    DType const dtype = stored ? catalog.blobs[pieces.blobs.front()].dtype : DType::u8;
    std::string_view const dtype_name = stored ? name(dtype) : "-";
    auto const bytes = static_cast<std::uint64_t>(model.volume(tensor)) *
                       static_cast<std::uint64_t>(bits(dtype)) / 8;
    Json item;
    item.set("name", tensor.name)
        .set("dtype", stored ? Json(dtype_name) : Json())
        .set("shape", shape_json(shape))
        .set("axes", Json(std::move(names)))
        .set("bytes", bytes);
    item.set("pieces", static_cast<std::int64_t>(pieces.pieces.size()));
    items_.push_back(std::move(item));
    text_ += fmt::format("{:<9}{:>12}  {:>7} pieces  {:<20} {}\n", dtype_name, human_bytes(bytes),
                         pieces.pieces.size(), tensor.name, axes);
  }

  TensorList take(fs::path const& path, std::string_view format, std::string_view kind) {
    TensorList result;
    result.json.set("path", path.string())
        .set("format", format)
        .set("kind", kind)
        .set("tensors", Json(std::move(items_)));
    result.text = std::move(text_);
    return result;
  }

 private:
  Json::Array items_;
  std::string text_;
};

std::int64_t volume(std::span<Index const> shape) {
  std::int64_t elements = 1;
  for (Index const extent : shape) elements *= extent;
  return elements;
}

void list_dcp(Lister& lister, dcp::Metadata const& metadata) {
  for (dcp::StoredTensor const& tensor : metadata.tensors) {
    auto const bytes = static_cast<std::uint64_t>(volume(tensor.shape)) *
                       static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
    std::string const file = tensor.chunk_count == 0
                                 ? ""
                                 : metadata.files[metadata.chunks[tensor.first_chunk].item.file];
    lister.add(fmt::format("{:>5} chunks", tensor.chunk_count),
               {tensor.name, tensor.dtype, tensor.shape, {}, 0, bytes}, file,
               Json().set("chunks", static_cast<std::int64_t>(tensor.chunk_count)));
  }
  for (dcp::StoredObject const& object : metadata.objects)
    lister.add_object(object.name, metadata.files[object.item.file], object.item.size_bytes);
}

void list_stored(Lister& lister, SourceCheckpoint const& source) {
  if (source.dcp) return list_dcp(lister, source.dcp->metadata);
  if (source.huggingface) {
    for (std::size_t f = 0; f < source.files.size(); ++f)
      for (std::size_t const i : source.huggingface->indexed[f])
        lister.add(source.huggingface->folder.files[f].string(),
                   source.huggingface->headers[f].tensors[i],
                   source.huggingface->folder.files[f].string(), {});
    return;
  }
  if (source.logical) {
    for (std::size_t f = 0; f < source.files.size(); ++f)
      for (hdf5::FoundDataset const& found : source.logical->parts[f].tensors) {
        Json::Array axes(found.axes.begin(), found.axes.end());
        lister.add(source.files[f].filename().string(),
                   {found.name, found.dtype, found.shape, {}, found.offset_bytes, found.size_bytes},
                   source.files[f].filename().string(), Json().set("axes", Json(std::move(axes))));
      }
    return;
  }
  MegatronCheckpoint const& megatron = *source.megatron;
  for (std::size_t f = 0; f < megatron.headers.size(); ++f) {
    auto const& place = megatron.classification.places[f];
    for (std::size_t v = 0; v < megatron.headers[f].chunks.size(); ++v) {
      std::string const where =
          megatron.directory.shards[f].name +
          (megatron.headers[f].chunks.size() > 1 ? fmt::format(":model{}", v) : "");
      for (FileTensor const& tensor : megatron.headers[f].chunks[v].tensors)
        lister.add(
            where, tensor,
            megatron.directory.shards[f].name + "/" + megatron.directory.shards[f].model_file,
            Json()
                .set("tp", place.tp)
                .set("pp", place.pp)
                .set("ep", place.ep)
                .set("chunk", static_cast<std::int64_t>(v)));
    }
  }
}

}  // namespace

TensorList list_tensors(fs::path const& path, Listing listing, std::string const& map,
                        std::vector<fs::path> const& map_folders, Comm const& comm) {
  bool places_matter = true;
  together_seeing(comm, [&] {
    places_matter = listing == Listing::logical || kind_of(path) != CheckpointKind::dcp;
  });
  SourceCheckpoint const source = places_matter ? open_source(path, SourceFormat::found, {}, comm)
                                                : open_dcp_metadata(path, comm);
  std::string_view const format = format_of(source);
  Lister lister;
  if (listing == Listing::stored) {
    list_stored(lister, source);
    return lister.take(path, format, "stored");
  }
  TargetRequest request;
  request.map = map;
  request.map_folders = map_folders;
  JobPlan const plan = catalogue(source, request);
  for (std::size_t t = 0; t < plan.model->tensors().size(); ++t)
    if (plan.model->exists(static_cast<int>(t))) lister.add_logical(*plan.model, plan.source, t);
  return lister.take(path, format, "logical");
}

}  // namespace reshard
