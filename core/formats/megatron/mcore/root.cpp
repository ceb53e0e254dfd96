#include "core/formats/megatron/mcore/root.hpp"

namespace reshard::megatron {

std::optional<std::string> root_in(std::string_view name) {
  constexpr std::string_view embedding = "embedding.word_embeddings.weight";
  if (!name.ends_with(embedding)) return std::nullopt;
  std::string_view const before = name.substr(0, name.size() - embedding.size());
  if (!before.empty() && before.back() != '.') return std::nullopt;
  return std::string(before);
}

std::string_view behind_root(std::string_view name, std::string_view root) {
  if (!name.starts_with(root)) return {};
  std::string_view const rest = name.substr(root.size());
  for (std::string_view const word : {"decoder.", "embedding.", "mtp.", "output_layer."})
    if (rest.starts_with(word)) return rest;
  return {};
}

std::map<std::string, std::size_t> parts_beside(std::set<std::string_view> const& names,
                                                std::string_view root) {
  std::map<std::string, std::size_t> result;
  for (std::string_view const name : names)
    if (behind_root(name, root).empty() && !name.ends_with("inv_freq"))
      ++result[std::string(name.substr(0, name.find('.')))];
  return result;
}

bool is_of_tower(std::string_view name) {
  for (std::string_view const part :
       {"vision_model.", "vision_projection.", "multi_modal_projector."})
    if (std::size_t const at = name.find(part);
        at == 0 || (at != std::string_view::npos && name[at - 1] == '.'))
      return true;
  return false;
}

}  // namespace reshard::megatron
