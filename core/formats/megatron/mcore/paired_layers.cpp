#include "core/formats/megatron/mcore/paired_layers.hpp"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/format.h>

#include "core/formats/megatron/mcore/hybrid_pattern.hpp"

namespace reshard::megatron {
namespace {

constexpr std::string_view attentions = "*+DG";
constexpr std::string_view feed_forwards = "-E";
constexpr char delta_net = 'G';
constexpr char latent = '+';
constexpr char indexed = 'D';
constexpr char experts = 'E';

bool is_in(std::string_view letters, char letter) {
  return letters.find(letter) != std::string_view::npos;
}

/// Why letters are not pairs; "" when they are.
std::string fault_of(std::string_view letters) {
  for (std::size_t i = 0; i < letters.size(); ++i)
    if (!is_in(i % 2 == 0 ? attentions : feed_forwards, letters[i]))
      return fmt::format("has '{}' as layer {}, where {} is expected", letters[i], i,
                         i % 2 == 0 ? "attention" : "an MLP or experts");
  return letters.size() % 2 == 0 ? "" : "ends with attention";
}

/// 1 for each pair with this letter, else 0; one number if all are equal.
Json rule_of(std::string_view letters, std::size_t half, char letter) {
  Json::Array rule;
  for (std::size_t i = half; i < letters.size(); i += 2)
    rule.emplace_back(letters[i] == letter ? 1 : 0);
  bool const all = std::ranges::all_of(rule, [](Json const& one) { return *one.integer() == 1; });
  return all ? Json(1) : Json(std::move(rule));
}

/// Half of a number of layers under a key; false when it is odd.
bool halve(Json& args, char const* key) {
  Json const* value = args.find(key);
  if (value == nullptr || value->integer() == nullptr || *value->integer() < 0) return true;
  if (*value->integer() % 2 != 0) return false;
  args.set(key, Json(*value->integer() / 2));
  return true;
}

/// The stages of `|` as Megatron's layout of GPTModel; "" where one of them cuts a pair.
std::string layout_of(std::span<std::string const> stages) {
  std::string result = "E";
  for (std::string const& stage : stages) {
    if (stage.size() % 2 != 0) return "";
    result += (&stage == stages.data() ? "" : "|") + std::string(stage.size() / 2, 't');
  }
  return result + "L";
}

}  // namespace

UnpairedArgs unpaired_args(Json const& hybrid) {
  auto const pattern = hybrid_pattern(hybrid);
  RESHARD_EXPECT(pattern);
  if (!pattern->behind.empty()) return {{}, "has layers for multi-token prediction"};
  std::string letters;
  for (std::string const& stage : pattern->stages) letters += stage;
  if (std::string fault = fault_of(letters); !fault.empty()) return {{}, std::move(fault)};
  Json args = hybrid;
  for (char const* key : {"hybrid_layer_pattern", "hybrid_override_pattern",
                          "mtp_hybrid_override_pattern", "is_hybrid_model"})
    if (args.find(key) != nullptr) args.set(key, Json());
  args.set("num_layers", Json(static_cast<std::int64_t>(letters.size() / 2)));
  if (is_in(letters, experts)) args.set("moe_layer_freq", rule_of(letters, 1, experts));
  if (is_in(letters, delta_net)) {
    args.set("experimental_attention_variant", Json("gated_delta_net"));
    args.set("linear_attention_freq", rule_of(letters, 0, delta_net));
  }
  if (is_in(letters, indexed)) args.set("experimental_attention_variant", Json("dsa"));
  if (is_in(letters, latent) || is_in(letters, indexed))
    args.set("multi_latent_attention", Json(true));
  bool whole = true;
  if (pattern->stages.size() > 1) {
    std::string const layout = layout_of(pattern->stages);
    whole = !layout.empty();
    args.set("pipeline_model_parallel_layout", Json(layout));
  }
  for (char const* key : {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"})
    whole = halve(args, key) && whole;
  if (!whole) return {{}, "has a pipeline stage that ends between attention and MLP"};
  return {std::move(args), ""};
}

namespace {

bool exists(Model const& model, char const* name) {
  auto const tensor = model.find_tensor(name);
  return tensor && model.exists(*tensor);
}

/// Tensors and axes that no layer of a hybrid model has.
std::string not_in_hybrid(Model const& model) {
  Json const depths = model.value("M");
  if (depths.integer() != nullptr && *depths.integer() > 0)
    return "layers for multi-token prediction";
  static constexpr std::array<std::pair<char const*, char const*>, 7> others = {
      {{"mqa.o", "DeepSeek-V4's attention"},
       {"hyper.attn_fn", "hyper connections"},
       {"attn.post_norm", "norms behind attention"},
       {"ffn.post_norm", "norms behind the MLP"},
       {"attn.q_norm_wide", "norms over all heads at once"},
       {"embed.position", "learned positions"},
       {"router.table", "layers that choose experts by token number"}}};
  for (auto const& [tensor, what] : others)
    if (exists(model, tensor)) return what;
  return "";
}

}  // namespace

ArgValues class_values(Json const& args) {
  ArgValues result;
  for (char const* key :
       {"hybrid_layer_pattern", "hybrid_override_pattern", "mtp_hybrid_override_pattern",
        "is_hybrid_model", "num_layers", "moe_layer_freq", "linear_attention_freq",
        "experimental_attention_variant", "multi_latent_attention"})
    if (Json const* value = args.find(key)) result.emplace_back(key, *value);
  return result;
}

ArgValues paired_args(Model const& model, Index layers, std::string_view place) {
  if (std::string const other = not_in_hybrid(model); !other.empty())
    fail(ErrorKind::usage,
         "{} model = \"hybrid\": the model has {}, which Megatron's HybridModel cannot hold. Set "
         "model = \"gpt\".",
         place, other);
  char const plain = exists(model, "indexer.q") ? indexed : exists(model, "mla.o") ? latent : '*';
  std::string pattern;
  for (Index layer = 0; layer < layers; ++layer) {
    bool const is_net = model.in_set("layer.gdn", layer);
    if (!is_net && !model.in_set("layer.attn", layer))
      fail(ErrorKind::usage,
           "{} model = \"hybrid\": layer {} has no attention, so it is not two layers. Set model = "
           "\"gpt\".",
           place, layer);
    pattern += is_net ? delta_net : plain;
    pattern += model.in_set("layer.moe", layer) ? experts : '-';
  }
  return {{"hybrid_layer_pattern", Json(pattern)},
          {"is_hybrid_model", Json(true)},
          {"num_layers", Json(static_cast<std::int64_t>(2 * layers))},
          {"moe_layer_freq", Json(1)},
          {"linear_attention_freq", Json()},
          {"experimental_attention_variant", Json()}};
}

}  // namespace reshard::megatron
