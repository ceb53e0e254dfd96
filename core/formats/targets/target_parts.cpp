#include "core/formats/targets/target_parts.hpp"

namespace reshard {

DType stored_dtype(TargetParts const& parts, StoredName const& name, SlotId slot) {
  if (auto const cast = parts.side->cast(name.entry);
      cast && slot == SlotId::weight && !parts.as_stored)
    return *cast;
  std::vector<TensorId> tensors = parts.side->tensors(name.entry);
  for (TensorId& tensor : tensors) tensor = parts.model->in_slot(tensor, slot);
  auto const dtype_of = [&](TensorId tensor) {
    std::optional<DType> const dtype = parts.dtypes[index(tensor)];
    if (!dtype)
      fail(
          ErrorKind::source,
          "source: no stored tensor holds '{}', which '{}' of the target needs ({}). Name the model's own map with model.map.",
          parts.model->tensor(tensor).name, name.name, parts.side->entry_place(name.entry));
    return *dtype;
  };
  for (TensorId const tensor : tensors) {
    if (dtype_of(tensor) == dtype_of(tensors.front())) continue;
    fail(
        ErrorKind::source,
        "source: '{}' is {} and '{}' is {}, but '{}' of the target holds both. Save them with one dtype.",
        parts.model->tensor(tensors.front()).name, reshard::name(dtype_of(tensors.front())),
        parts.model->tensor(tensor).name, reshard::name(dtype_of(tensor)), name.name);
  }
  return dtype_of(tensors.front());
}

TextFile* config_text(TargetDraft& job) {
  for (TextFile& text : job.texts)
    if (text.path == huggingface::config_name) return &text;
  return nullptr;
}

void patch_config(TargetDraft& job, huggingface::ConfigPatch const& patch) {
  if (TextFile* config = config_text(job); config != nullptr)
    config->text = huggingface::patched_config_text(std::move(config->text), std::span(&patch, 1),
                                                    huggingface::config_name);
}

}  // namespace reshard
