#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/tables/counted.hpp"
#include "core/formats/inspect_lines.hpp"
#include "core/formats/megatron/report.hpp"

namespace reshard::megatron {
namespace {

constexpr std::array<std::pair<char const*, char const*>, 5> axes = {{{"tensor", "tp"},
                                                                      {"pipeline", "pp"},
                                                                      {"virtual_pipeline", "vpp"},
                                                                      {"expert", "ep"},
                                                                      {"expert_tensor", "etp"}}};

/// The lists of missing and surplus names.
constexpr std::array<std::pair<char const*, char const*>, 5> lists = {
    {{"missing", "missing"},
     {"extra", "too many"},
     {"without_model_file", "without weights"},
     {"optimizer_only", "optimizer only"},
     {"foreign", "other files"}}};

/// A member of a member; null where there is none.
Json at(Json const& report, std::string_view table, std::string_view key) {
  Json const* const members = report.find(table);
  Json const* const value = members == nullptr ? nullptr : members->find(key);
  return value == nullptr ? Json() : *value;
}

bool is_true(Json const& value) { return value.boolean() != nullptr && *value.boolean(); }
bool is_empty(Json const& value) {
  return value.is_null() || (value.items() != nullptr && value.items()->empty());
}

/// How the layers are made.
std::string modules_text(Json const& report) {
  std::vector<std::string> words = {report_value(at(report, "model", "spec")) + " layers"};
  if (std::string const experts = report_value(at(report, "model", "experts")); experts != "none")
    words.push_back(experts);
  for (auto const& [key, word] : {std::pair("multi_token_prediction", "multi-token prediction"),
                                  std::pair("state_space", "state-space layers"),
                                  std::pair("vision", "parts beside the language model")})
    if (is_true(at(report, "model", key))) words.emplace_back(word);
  return fmt::format("{}", fmt::join(words, ", "));
}

/// "tp 2" and "from args", for each axis that the table has.
std::pair<std::vector<std::string>, std::vector<std::string>> sizes_and_sources(Json const& table) {
  std::vector<std::string> sizes;
  std::vector<std::string> sources;
  for (auto const& [key, word] : axes) {
    Json const* const size = table.find(key);
    if (size == nullptr) continue;
    Json const* const value = size->find("value");
    Json const* const source = size->find("source");
    if (value == nullptr || source == nullptr) continue;
    sizes.push_back(fmt::format("{} {}", word, report_value(*value)));
    std::string const origin = report_value(*source);
    sources.push_back(origin == "user" ? "as given" : "from " + origin);
  }
  return {std::move(sizes), std::move(sources)};
}

}  // namespace

std::string sizes_text(Json const& table) {
  return fmt::format("{}", fmt::join(sizes_and_sources(table).first, ", "));
}

bool is_adapter_matrix(std::string_view name) {
  return std::ranges::any_of(std::array{"lora_A.", "lora_B.", ".lora_a.", ".lora_b.",
                                        "linear_in.weight", "linear_out.weight"},
                             [&](std::string_view word) { return name.find(word) != name.npos; });
}

std::string adapter_text(std::size_t matrices, std::size_t tensors) {
  return fmt::format("{} of {} are low-rank matrices (LoRA){}", matrices,
                     counted(tensors, "tensor"),
                     matrices == tensors ? ": it needs the model that it was trained on" : "");
}

std::string layout_text(Json const& table) {
  auto [sizes, sources] = sizes_and_sources(table);
  bool const alike = std::ranges::all_of(
      sources, [&](std::string const& source) { return source == sources.front(); });
  if (alike && !sizes.empty())
    return fmt::format("{} ({})", fmt::join(sizes, ", "), sources.front());
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] += fmt::format(" ({})", sources[i]);
  return fmt::format("{}", fmt::join(sizes, ", "));
}

std::string model_text(Json const& model) {
  std::vector<std::string> facts;
  auto const add = [&](std::string_view text, char const* key) {
    if (Json const* const value = model.find(key); value != nullptr && value->integer() != nullptr)
      facts.push_back(fmt::format(fmt::runtime(text), *value->integer()));
  };
  auto const add_count = [&](std::string_view one, char const* key) {
    if (Json const* const value = model.find(key); value != nullptr && value->integer() != nullptr)
      facts.push_back(counted(*value->integer(), one));
  };
  add_count("layer", "num_layers");
  add("hidden size {}", "hidden_size");
  add_count("expert", "num_experts");
  if (Json const* const attention = model.find("attention");
      attention != nullptr && !attention->is_null())
    facts.push_back(report_value(*attention));
  add("vocabulary {}", "vocab_size");
  add("padded to {}", "padded_vocab_size");
  return fmt::format("{}", fmt::join(facts, ", "));
}

std::string inspect_summary(Json const& report) {
  std::string out;
  auto const line = [&](std::string_view label, std::string const& text) {
    out += inspect_line(label, text);
  };
  line("layout", layout_text(*report.find("sizes")));
  line("iteration", is_true(at(report, "found", "release"))
                        ? "release"
                        : report_value(at(report, "found", "iteration")));
  line("folders", fmt::format("{}, named {}", report_value(at(report, "found", "directories")),
                              report_value(*report.find("expected_pattern"))));
  for (auto const& [key, word] : lists)
    if (Json const names = at(report, "found", key); !is_empty(names))
      line(word, report_value(names));
  line("model", model_text(*report.find("model")));
  if (Json const adapter = at(report, "model", "adapter"); !adapter.is_null())
    line("adapter", report_value(adapter));
  line("modules", modules_text(report));
  line("optimizer", report_value(at(report, "optimizer", "kind")));
  line("random state", is_true(*report.find("rng")) ? "yes" : "no");
  return out;
}

}  // namespace reshard::megatron
