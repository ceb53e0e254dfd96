#include "core/formats/target_parts.hpp"

namespace reshard {

DType stored_dtype(TargetParts const& parts, StoredName const& name, std::size_t first_tensor) {
  if (auto const cast = parts.side->cast(name.entry); cast && first_tensor == 0) return *cast;
  std::vector<int> tensors = parts.side->tensors(name.entry);
  for (int& tensor : tensors) tensor += narrow<int>(first_tensor);
  auto const dtype_of = [&](int tensor) {
    std::optional<DType> const dtype = parts.dtypes[static_cast<std::size_t>(tensor)];
    if (!dtype)
      fail(
          ErrorKind::source,
          "source: no stored tensor holds '{}', which '{}' of the target needs ({}). Name the model's own map with model.map.",
          parts.model->tensors()[static_cast<std::size_t>(tensor)].name, name.name,
          parts.side->entry_place(name.entry));
    return *dtype;
  };
  for (int const tensor : tensors) {
    if (dtype_of(tensor) == dtype_of(tensors.front())) continue;
    auto const& all = parts.model->tensors();
    fail(
        ErrorKind::source,
        "source: '{}' is {} and '{}' is {}, but '{}' of the target holds both. Save them with one dtype.",
        all[static_cast<std::size_t>(tensors.front())].name,
        reshard::name(dtype_of(tensors.front())), all[static_cast<std::size_t>(tensor)].name,
        reshard::name(dtype_of(tensor)), name.name);
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
