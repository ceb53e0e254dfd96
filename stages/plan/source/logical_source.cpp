#include "stages/plan/source/logical_source.hpp"

#include "core/plan/digest_work.hpp"
#include "stages/plan/target/target_hdf5.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

Catalog logical_catalog(Model& model, LogicalCheckpoint const& checkpoint,
                        std::vector<std::filesystem::path> const& files) {
  Catalog catalog;
  for (std::filesystem::path const& file : files) catalog.files.push_back(file.string());
  catalog.tensors.resize(model.tensors().size());
  for (std::size_t t = 0; t < model.tensors().size(); ++t)
    model.set_exists(static_cast<int>(t), false);
  for (std::size_t f = 0; f < checkpoint.parts.size(); ++f)
    for (hdf5::FoundDataset const& found : checkpoint.parts[f].tensors) {
      int const tensor = model.find_tensor(found.name);
      if (tensor < 0)
        fail(
            ErrorKind::source,
            "{}: holds '{}', a tensor that the map '{}' does not know. Use the map that wrote the file, or model.map = \"none\".",
            catalog.files[f], found.name, checkpoint.map);
      model.set_exists(tensor, true);
      std::vector<Index> shape = logical_shape(model, tensor);
      // Rows of padding that were carried as vocabulary: the config of a Hugging Face target counts
      // fewer.
      bool const padded = !shape.empty() && found.axes.size() == shape.size() &&
                          found.axes.front() == "vocab" && found.shape.size() == shape.size() &&
                          found.shape.front() == checkpoint.vocab &&
                          shape.front() < checkpoint.vocab;
      if (padded) shape.front() = checkpoint.vocab;
      if (found.shape != shape || found.axes != axis_labels(model, tensor) ||
          found.domain != domain_text(model, tensor))
        fail(
            ErrorKind::source,
            "{}: '{}' has the shape [{}] over the axes '{}' with '{}', expected [{}] over '{}' with '{}' by {}. The file's config is not that of its "
            "tensors: correct it, or set model.map = \"none\".",
            catalog.files[f], found.name, fmt::join(found.shape, ", "), fmt::join(found.axes, " "),
            found.domain, fmt::join(shape, ", "), fmt::join(axis_labels(model, tensor), " "),
            domain_text(model, tensor), model.origin());
      catalog.add({narrow<std::uint32_t>(f), found.offset_bytes, found.dtype, found.name},
                  logical_pieces(model, tensor), false);
    }
  return catalog;
}

}  // namespace

void read_logical_facts(LogicalCheckpoint const& checkpoint, SourceModel& result) {
  result.config = checkpoint.config;
  result.config_text = checkpoint.config_text;
  result.args = checkpoint.args;
  if (Json const stated = fact(result.args, "transformer_impl"); !result.args.is_null())
    result.traits.spec = stated.text() != nullptr && *stated.text() == "local" ? "local" : "te";
  if (result.config.is_null() && result.args.is_null())
    fail(
        ErrorKind::source,
        "{}: holds neither config.json nor args.json, so nothing says how large the model is. Write the file again.",
        checkpoint.folder.string());
}

SourceModel with_logical_catalogue(SourceModel result, LogicalCheckpoint const& checkpoint,
                                   std::vector<fs::path> const& files) {
  result.catalog = logical_catalog(*result.model, checkpoint, files);
  if (!result.maps.family) return result;
  result.family_side = std::make_unique<Side>(*result.model, *result.maps.family, SideOptions{});
  for (int const tensor : result.family_side->required_tensors())
    if (!result.model->exists(tensor))
      fail(
          ErrorKind::source,
          "{}: lacks '{}', which {} has. A file is missing, or its config is not that of its tensors: restore the file, or write the container "
          "again.",
          checkpoint.folder.string(),
          result.model->tensors()[static_cast<std::size_t>(tensor)].name, result.maps.family->name);
  return result;
}

}  // namespace reshard
