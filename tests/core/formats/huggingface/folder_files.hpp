#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/formats/huggingface/folder.hpp"

namespace reshard::huggingface {

/// A file with these tensors, one byte each, all zero.
inline void write_weights(std::filesystem::path const& path,
                          std::vector<std::string> const& names) {
  std::vector<TensorSpec> tensors;
  for (std::string const& name : names) tensors.push_back({name, DType::u8, {1}});
  safetensors::FilePlan const plan = safetensors::plan_file(tensors, {});
  File const file = File::create(path);
  file.write_at(0, std::as_bytes(std::span(plan.header)));
  file.resize(plan.size_bytes);
}

/// {"metadata": …, "weight_map": {tensor: file, …}} as text.
inline std::string index_text(std::vector<std::pair<std::string, std::string>> const& weight_map,
                              std::string_view metadata = R"({"total_size": 2})") {
  std::string members;
  for (auto const& [tensor, file] : weight_map)
    members += (members.empty() ? "" : ", ") + json_quoted(tensor) + ": " + json_quoted(file);
  return fmt::format(R"({{"metadata": {}, "weight_map": {{{}}}}})", metadata, members);
}

/// The sentence with which a folder is refused, or "" when it opens.
inline std::string refusal(std::filesystem::path const& folder) {
  try {
    open_folder(folder);
  } catch (Error const& error) {
    return error.kind() == ErrorKind::source ? error.sentence()
                                             : "another kind: " + error.sentence();
  }
  return "";
}

}  // namespace reshard::huggingface
