#include "core/formats/huggingface/config/config_dtype.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/formats/huggingface/config/config.hpp"

namespace reshard::huggingface {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 4> words = {{{"bfloat16", DType::bf16},
                                                                      {"float16", DType::f16},
                                                                      {"float32", DType::f32},
                                                                      {"float64", DType::f64}}};

std::string word_of(DType dtype) {
  using Word = std::pair<std::string_view, DType>;
  return std::string(std::ranges::find(words, dtype, &Word::second)->first);
}

/// Objects of config.json that describe a model or a part of one.
bool is_config(std::string_view key) {
  return key.ends_with("_config") && key != "quantization_config";
}

void add_patches(Json const& config, std::vector<std::string> const& path, Json const& word,
                 std::vector<ConfigPatch>& patches) {
  Json::Object const* const members = config.members();
  if (members == nullptr) return;
  for (auto const& [key, value] : *members) {
    std::vector<std::string> at = path;
    at.push_back(key);
    if (std::ranges::find(dtype_members, key) != dtype_members.end() && value.text() != nullptr &&
        dtype_of_word(*value.text()))
      patches.push_back({at, word});
    else if (is_config(key))
      add_patches(value, at, word, patches);
  }
}

}  // namespace

std::optional<DType> dtype_of_word(std::string_view word) {
  constexpr std::string_view before = "torch.";
  if (word.starts_with(before)) word.remove_prefix(before.size());
  for (auto const& [known, dtype] : words)
    if (word == known) return dtype;
  return std::nullopt;
}

std::string config_with_dtype(std::string text, DType dtype, std::string const& place) {
  if (text.empty()) return text;
  Json const word(word_of(dtype));
  std::vector<ConfigPatch> patches;
  add_patches(parse_config(text, place), {}, word, patches);
  if (patches.empty()) patches.push_back({{std::string(dtype_members.back())}, word});
  return patched_config_text(std::move(text), patches, place);
}

}  // namespace reshard::huggingface
