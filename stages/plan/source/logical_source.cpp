#include "stages/plan/source/logical_source.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/formats/hdf5/target.hpp"
#include "core/plan/equal/digest_work.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// "attn.q (exp_avg)".
bool is_state(std::string_view name, std::span<std::string const> slots) {
  return std::ranges::any_of(
      slots, [&](std::string const& slot) { return name.ends_with(fmt::format(" ({})", slot)); });
}

/// `paired`: the labels may count the layers of the hybrid model of pairs that was saved; elements
/// lie in the same order.
bool has_domain(Model const& model, TensorId tensor, LogicalLabels const& labels, bool paired) {
  if (labels.domain == domain_text(model, tensor)) return true;
  return paired && (labels.domain == domain_text(model, tensor, 0) ||
                    labels.domain == domain_text(model, tensor, 1));
}

/// Rows behind the vocabulary of a weight, which a job leaves out. Pre: rows are whole bytes.
PaddingRows rows_behind(TensorId tensor, StoredTensor const& found, ItemPlace const& item,
                        Index held) {
  auto const rows = found.shape.front();
  std::uint64_t const row_bytes = item.size_bytes / static_cast<std::uint64_t>(rows);
  return {tensor,      item.file, item.offset_bytes + static_cast<std::uint64_t>(held) * row_bytes,
          found.dtype, held,      rows - held,
          row_bytes};
}

Catalog logical_catalog(Model& model, Checkpoint const& checkpoint, bool paired,
                        std::vector<PaddingRows>& padding) {
  Catalog catalog;
  for (fs::path const& file : checkpoint.files) catalog.files.push_back(file.string());
  catalog.tensors.resize(model.tensors().size());
  for (std::size_t t = 0; t < model.tensors().size(); ++t) model.set_exists(TensorId(t), false);
  for (std::size_t i = 0; i < checkpoint.stored.tensors.size(); ++i) {
    StoredTensor const& found = checkpoint.stored.tensors[i];
    LogicalLabels const& labels = checkpoint.logical.labels[i];
    ItemPlace const& item = checkpoint.stored.chunks[found.first_chunk].item;
    std::string const& file = catalog.files[item.file];
    if (model.slots().size() == 1 && is_state(found.name, checkpoint.state.inventory.slots))
      continue;
    std::optional<TensorId> const known = model.find_tensor(found.name);
    if (!known)
      fail(ErrorKind::source,
           "{}: holds '{}', a tensor that the map '{}' does not define. Use the map that wrote the "
           "file, or model.map = \"none\".",
           file, found.name, checkpoint.logical.map);
    TensorId const tensor = *known;
    model.set_exists(tensor, true);
    std::vector<Index> shape = logical_shape(model, tensor);
    // Rows of padding that were carried as vocabulary: the config of a Hugging Face target counts
    // fewer.
    bool const padded = !shape.empty() && labels.axes.size() == shape.size() &&
                        labels.axes.front() == "vocab" && found.shape.size() == shape.size() &&
                        found.shape.front() == checkpoint.logical.vocab &&
                        shape.front() < checkpoint.logical.vocab;
    if (padded && !is_state(found.name, checkpoint.state.inventory.slots))
      padding.push_back(rows_behind(tensor, found, item, shape.front()));
    if (padded) shape.front() = checkpoint.logical.vocab;
    if (found.shape != shape || labels.axes != axis_labels(model, tensor) ||
        !has_domain(model, tensor, labels, paired))
      fail(ErrorKind::source,
           "{}: '{}' has the shape [{}] over the axes '{}' with '{}', expected [{}] over '{}' with "
           "'{}' by {}. The file's config does not describe its tensors: correct it, or set "
           "model.map = \"none\".",
           file, found.name, fmt::join(found.shape, ", "), fmt::join(labels.axes, " "),
           labels.domain, fmt::join(shape, ", "), fmt::join(axis_labels(model, tensor), " "),
           domain_text(model, tensor), model.origin());
    catalog.add({item.file, item.offset_bytes, found.dtype, found.name},
                logical_pieces(model, tensor), false);
  }
  return catalog;
}

}  // namespace

void read_logical_facts(Checkpoint const& checkpoint, SourceModel& result) {
  result.facts.config = checkpoint.model.config;
  result.facts.config_text = checkpoint.model.config_text;
  result.facts.args = checkpoint.run.args;
  if (Json const stated = fact(result.facts.args, "transformer_impl"); !result.facts.args.is_null())
    result.facts.traits.spec =
        stated.text() != nullptr && *stated.text() == "local" ? "local" : "te";
  if (result.facts.config.is_null() && result.facts.args.is_null())
    fail(ErrorKind::source,
         "{}: holds neither config.json nor args.json, so the sizes of the model are not known. "
         "Write the file again.",
         checkpoint.folder.string());
}

SourceModel with_logical_catalogue(SourceModel result, Checkpoint const& checkpoint) {
  result.stored.catalog =
      logical_catalog(*result.model, checkpoint, result.facts.traits.paired, result.stored.padding);
  if (!result.names.maps.family) return result;
  result.names.family_side =
      std::make_unique<Side>(*result.model, *result.names.maps.family, SideOptions{});
  for (TensorId const tensor : result.names.family_side->required_tensors())
    if (!result.model->exists(tensor))
      fail(ErrorKind::source,
           "{}: lacks '{}', which {} has. A file is missing, or its config does not describe its "
           "tensors: restore the file, or write the container again.",
           checkpoint.folder.string(), result.model->tensor(tensor).name,
           result.names.maps.family->name);
  return result;
}

}  // namespace reshard
