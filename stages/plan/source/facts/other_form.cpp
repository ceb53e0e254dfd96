#include "stages/plan/source/facts/other_form.hpp"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "core/base/text/shape_text.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

constexpr std::size_t most_shown = 4;
constexpr char const* kept =
    "model.map = \"none\" keeps the stored tensors as they are, in a Hugging Face folder, DCP or "
    "HDF5";
constexpr char const* values =
    "model.quant = \"dequantise-bf16\" computes BF16 weights for any target";
constexpr char const* before = "for other targets take the model as it was before";

/// The object that describes how weights are quantised; nullptr for none.
Json const* settings_of(Json const& config) {
  for (char const* const key : {"quantization_config", "compression_config"})
    if (Json const* const found = config.find(key); found != nullptr && found->members() != nullptr)
      return found;
  for (char const* const inner : {"text_config", "llm_config", "thinker_config"})
    if (Json const* const found = config.find(inner); found != nullptr)
      if (Json const* const settings = settings_of(*found); settings != nullptr) return settings;
  return nullptr;
}

/// "a.b." of "a.b.c"; "" of "c".
std::string_view module_of(std::string_view name) {
  auto const dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot + 1);
}

/// Whether two names differ in digits alone.
bool are_numbered_alike(std::string_view a, std::string_view b) {
  auto const digit = [](char letter) { return letter >= '0' && letter <= '9'; };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    bool const numbered = digit(a[i]) && digit(b[j]);
    if (!numbered && a[i++] != b[j++]) return false;
    while (numbered && i < a.size() && digit(a[i])) ++i;
    while (numbered && j < b.size() && digit(b[j])) ++j;
  }
  return i == a.size() && j == b.size();
}

}  // namespace

std::string quantised_by(Json const& config) {
  Json const* const settings = settings_of(config);
  if (settings == nullptr) return "";
  Json const* const method = settings->find("quant_method");
  std::string text =
      method != nullptr && method->text() != nullptr ? *method->text() : "an unnamed method";
  for (char const* const key : {"quant_algo", "format", "bits"}) {
    Json const* const value = settings->find(key);
    if (value == nullptr) continue;
    if (value->text() != nullptr) return fmt::format("{} ({})", text, *value->text());
    if (value->integer() != nullptr) return fmt::format("{} ({} bits)", text, *value->integer());
  }
  return text;
}

std::string unnamed_beside(std::string_view weight, NameTable const& stored,
                           std::span<StoredName const> names, StoredTable const& table,
                           int levels) {
  std::unordered_set<std::string_view> known;
  for (StoredName const& name : names) {
    known.insert(name.name);
    known.insert(name.aliases.begin(), name.aliases.end());
  }
  std::string_view module = module_of(weight);
  for (int level = 0; level <= levels && !module.empty(); ++level) {
    std::vector<std::string> found;
    for (auto const& [key, at] : stored) {
      if (!key.starts_with(module) || known.contains(key)) continue;
      if (are_numbered_alike(key, weight)) continue;  // another of its kind, not another form
      if (level > 0 && key.substr(module.size()).find("scale") == std::string_view::npos) continue;
      StoredTensor const& tensor = table.tensors[at];
      found.push_back(
          fmt::format("'{}' {} {}", key, name(tensor.dtype), shape_text(tensor.shape.sizes())));
    }
    std::ranges::sort(found);
    if (!found.empty()) return listed(found, most_shown);
    module = module_of(module.substr(0, module.size() - 1));
  }
  return "";
}

std::string other_form_words(std::string const& beside, std::string const& method,
                             bool has_values) {
  if (method.empty())
    return fmt::format("Beside it there is {}. No map describes this form. {}", beside, kept);
  return fmt::format(
      "Beside it there is {}. By config.json the model is quantised by {}, and no map describes "
      "its weights in this form. {}; {}",
      beside, method, kept, has_values ? values : before);
}

std::string straddling_words(std::string const& fault, bool has_values) {
  return fmt::format("Its scales are there, and cannot be cut as the weight is: {}. {}; {}", fault,
                     kept, has_values ? values : before);
}

}  // namespace reshard
