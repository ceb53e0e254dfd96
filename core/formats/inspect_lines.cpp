#include "core/formats/inspect_lines.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "core/base/capture.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/report.hpp"

namespace reshard {
namespace {

/// The first of these members that is a number; null for none.
Json number(Json const& table, std::initializer_list<std::string_view> keys) {
  for (std::string_view const key : keys)
    if (Json const* const value = table.find(key); value != nullptr && value->integer() != nullptr)
      return *value;
  return {};
}

/// The kind of attention; null if the number of heads is not stated.
Json attention(bool latent, Json const& heads, Json const& groups) {
  if (latent) return "MLA";
  if (heads.integer() == nullptr) return {};
  if (groups.integer() == nullptr || *heads.integer() == *groups.integer()) return "MHA";
  return fmt::format("GQA, {} heads in {} groups", *heads.integer(), *groups.integer());
}

std::string list(std::string_view label, std::span<std::string const> items) {
  std::string text;
  for (std::string const& item : items)
    text += inspect_line(std::exchange(label, ""), without_controls(item));
  return text;
}

}  // namespace

std::string inspect_findings(std::span<std::string const> mismatches,
                             std::span<std::string const> notes) {
  return (mismatches.empty() ? inspect_line("mismatches", "-") : list("mismatches", mismatches)) +
         list("notes", notes);
}

std::string inspect_args(Json const& args, SeenTensors const& seen, Json& json) {
  std::string text;
  if (args.members() == nullptr) return text;
  megatron::ArgsSizes sizes;
  // Malformed sizes are refused only where they are needed.
  bool const stated = !capture([&] { sizes = megatron::args_sizes(args, "args"); }) && sizes.tp;
  if (stated) {
    int const tp = *sizes.tp;
    std::array<std::pair<char const*, int>, 5> const axes = {
        {{"tensor", tp},
         {"pipeline", sizes.pp.value_or(1)},
         {"virtual_pipeline", sizes.vpp.value_or(1)},
         {"expert", sizes.ep.value_or(1)},
         {"expert_tensor", sizes.etp.value_or(tp)}}};
    Json table = Json::object();
    for (auto const& [key, size] : axes)
      table.set(key, Json().set("value", size).set("source", "args"));
    auto const sharded = megatron::weight_sharding(args);
    text += inspect_line("layout", "any (saved with " + megatron::sizes_text(table) + ")" +
                                       (sharded ? "; " + *sharded : ""));
    json.set("sizes", std::move(table));
  }
  if (number(args, {"num_layers"}).is_null()) return text;
  Json model = Json::object();
  model.set("attention", attention(seen.latent_attention, number(args, {"num_attention_heads"}),
                                   number(args, {"num_query_groups"})));
  for (std::string_view const key :
       {"num_layers", "hidden_size", "num_experts", "vocab_size", "padded_vocab_size"})
    model.set(std::string(key), number(args, {key}));
  text += inspect_line("model", megatron::model_text(model));
  json.set("model", std::move(model));
  return text;
}

std::string inspect_config(Json const& config, Json& json) {
  Json const* const inner = config.find("text_config");
  Json const& stated = inner != nullptr && inner->members() != nullptr ? *inner : config;
  Json const layers = number(stated, {"num_hidden_layers"});
  if (layers.is_null()) return "";
  Json model = Json::object();
  model.set("num_layers", layers)
      .set("hidden_size", number(stated, {"hidden_size"}))
      .set("num_experts", number(stated, {"num_experts", "num_local_experts", "n_routed_experts"}))
      .set("attention", attention(stated.find("kv_lora_rank") != nullptr,
                                  number(stated, {"num_attention_heads"}),
                                  number(stated, {"num_key_value_heads"})))
      .set("vocab_size", number(stated, {"vocab_size"}));
  std::string const text = inspect_line("model", megatron::model_text(model));
  json.set("model", std::move(model));
  return text;
}

}  // namespace reshard
