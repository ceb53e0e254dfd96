#include "core/formats/huggingface/quant/made_quant.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "core/base/error.hpp"
#include "core/base/text.hpp"

namespace reshard::huggingface {
namespace {

/// The release whose form is written.
constexpr char const* compressed_tensors_release = "0.20.0";

std::optional<Index> number_of(std::string_view text) {
  Index value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 65536)
    return std::nullopt;
  return value;
}

[[noreturn]] void fail_block(std::string const& text, std::string_view wanted) {
  fail(ErrorKind::usage, "[target] quant_block = \"{}\": expected {}. Correct the key.", text,
       wanted);
}

void set_block(QuantRecipe& recipe, std::string const& text) {
  bool const grid = recipe.form == MadeQuant::fp8_block;
  if (grid || recipe.form == MadeQuant::int4_group) {
    recipe.block_rows = grid ? 128 : 1;
    recipe.block_columns = 128;
  }
  if (recipe.form == MadeQuant::mxfp8) recipe.block_columns = 32;
  if (text.empty()) return;
  if (grid) {
    std::size_t const cross = text.find('x');
    auto const rows = number_of(std::string_view(text).substr(0, cross));
    auto const columns = number_of(
        cross == std::string::npos ? std::string_view() : std::string_view(text).substr(cross + 1));
    if (!rows || !columns) fail_block(text, "rows and columns, such as \"128x128\"");
    recipe.block_rows = *rows;
    recipe.block_columns = *columns;
    return;
  }
  auto const columns = number_of(text);
  if (recipe.form != MadeQuant::int4_group)
    fail_block(text, "no block: this form has its own. It is for fp8-block and int4-group");
  if (!columns || *columns % 8 != 0) fail_block(text, "a number of columns that 8 divides");
  recipe.block_columns = *columns;
}

template <std::size_t n>
bool is_one_of(std::string_view word, std::array<std::string_view, n> const& words) {
  return std::ranges::find(words, word) != words.end();
}

/// Of a tower or projector beside the language model, or of multi-token prediction.
bool is_beside(std::string_view part) {
  constexpr std::array<std::string_view, 10> beginnings = {
      "visual", "vision", "audio",   "image",  "multi_modal",
      "mm_",    "vit",    "vqmodel", "speech", "mtp"};
  return std::ranges::any_of(beginnings,
                             [&](std::string_view one) { return part.starts_with(one); });
}

bool is_small(std::string_view part) {
  constexpr std::array<std::string_view, 11> names = {
      "gate",       "router",    "shared_expert_gate", "weights_proj",
      "in_proj_ba", "in_proj_a", "in_proj_b",          "x_proj",
      "dt_proj",    "conv1d",    "classifier"};
  return is_one_of(part, names);
}

bool is_output(std::string_view part) {
  return is_one_of(part, std::array<std::string_view, 3>{"lm_head", "embed_out", "score"});
}

Json number(int bits, char const* type, char const* strategy, bool dynamic) {
  Json result;
  result.set("dynamic", dynamic)
      .set("group_size", Json())
      .set("num_bits", bits)
      .set("strategy", strategy)
      .set("symmetric", true)
      .set("type", type);
  return result;
}

struct Group {
  std::string name;
  char const* format = "float-quantized";
  Json weights;
  Json inputs;
};

Group group_of(QuantRecipe const& recipe) {
  bool const usual = recipe.block_columns == 128 && recipe.block_rows != 1;
  Group group;
  switch (recipe.form) {
    case MadeQuant::fp8_block:
      group.name = usual && recipe.block_rows == 128 ? "FP8_BLOCK" : "config_group_0";
      group.weights = number(8, "float", "block", false);
      group.weights.set("block_structure",
                        Json(Json::Array{Json(recipe.block_rows), Json(recipe.block_columns)}));
      group.inputs = number(8, "float", "group", true);
      group.inputs.set("group_size", recipe.block_columns);
      break;
    case MadeQuant::mxfp8:
      group.name = "MXFP8";
      group.format = "mxfp8-quantized";
      group.weights = number(8, "float", "group", false);
      group.inputs = number(8, "float", "group", true);
      for (Json* const one : {&group.weights, &group.inputs})
        one->set("group_size", Index{32}).set("scale_dtype", "torch.uint8");
      break;
    case MadeQuant::int4_group:
      group.name = recipe.block_columns == 128 ? "W4A16" : "config_group_0";
      group.format = "pack-quantized";
      group.weights = number(4, "int", "group", false);
      group.weights.set("group_size", recipe.block_columns);
      break;
    default:
      group.name = "FP8_DYNAMIC";
      group.weights = number(8, "float", "channel", false);
      group.inputs = number(8, "float", "token", true);
  }
  return group;
}

Json for_compressed_tensors(QuantRecipe const& recipe, Json left) {
  Group group = group_of(recipe);
  Json scheme;
  scheme.set("format", group.format)
      .set("input_activations", std::move(group.inputs))
      .set("output_activations", Json())
      .set("targets", Json(Json::Array{Json("Linear")}))
      .set("weights", std::move(group.weights));
  Json result;
  result.set("config_groups", Json().set(group.name, std::move(scheme)))
      .set("format", group.format)
      .set("global_compression_ratio", Json())
      .set("ignore", std::move(left))
      .set("kv_cache_scheme", Json())
      .set("moe_sparsity_config", Json())
      .set("quant_method", "compressed-tensors")
      .set("quantization_status", "compressed")
      .set("transform_config", Json::object())
      .set("version", compressed_tensors_release);
  return result;
}

Json for_transformers(QuantRecipe const& recipe, Json left) {
  Json result;
  result.set("activation_scheme", "dynamic")
      .set("dequantize", false)
      .set("expert_dtype", "fp8")
      .set("modules_to_convert", Json())
      .set("modules_to_not_convert", std::move(left))
      .set("quant_method", "fp8")
      .set("scale_fmt", recipe.power_scales ? "ue8m0" : "float")
      .set("weight_block_size",
           Json(Json::Array{Json(recipe.block_rows), Json(recipe.block_columns)}));
  return result;
}

}  // namespace

bool QuantRecipe::needs_complete_blocks() const {
  return form == MadeQuant::mxfp8 || form == MadeQuant::int4_group;
}

DType QuantRecipe::code_dtype() const {
  return form == MadeQuant::int4_group ? DType::i32 : DType::f8_e4m3;
}

std::string_view QuantRecipe::codes_name() const {
  return form == MadeQuant::int4_group ? "weight_packed" : "weight";
}

std::string_view QuantRecipe::scales_name() const {
  return library == QuantFor::transformers ? "weight_scale_inv" : "weight_scale";
}

QuantRecipe recipe_of(TargetOptions const& options) {
  QuantRecipe recipe;
  recipe.form = options.quant;
  bool const blocks = options.quant == MadeQuant::fp8_block;
  recipe.library = options.quant_for != QuantFor::automatic ? options.quant_for
                   : blocks                                 ? QuantFor::transformers
                                                            : QuantFor::compressed_tensors;
  if (recipe.library == QuantFor::transformers && !blocks)
    fail(
        ErrorKind::usage,
        "[target] quant_for = \"transformers\": transformers has blocks of FP8 alone. Set quant = "
        "\"fp8-block\" (MXFP8 are its blocks of 1x32 with quant_scales = \"e8m0\"), or quant_for = "
        "\"compressed-tensors\".");
  recipe.power_scales = options.quant_scales == QuantScales::e8m0;
  if (options.quant_scales != QuantScales::automatic && recipe.library != QuantFor::transformers)
    fail(ErrorKind::usage,
         "[target] quant_scales: compressed-tensors has scales in the dtype of the weights, and of "
         "mxfp8 powers of two. Remove the key, or set quant = \"fp8-block\" and quant_for = "
         "\"transformers\".");
  set_block(recipe, options.quant_block);
  recipe.ignored = parts_between(';', options.quant_ignore);
  return recipe;
}

bool is_embedding(std::string_view module) {
  std::string_view const last = dotted_parts(module).back();
  return last.find("embed") != std::string_view::npos || last == "wte" || last == "wpe";
}

bool keeps_weight(std::string_view module, Index layers, std::vector<std::string> const& ignored) {
  auto const parts = dotted_parts(module);
  if (is_embedding(module) || is_output(parts.back()) || parts.back().ends_with("norm") ||
      std::ranges::any_of(parts, is_beside) || std::ranges::any_of(parts, is_small))
    return true;
  for (std::size_t i = 0; layers > 0 && i + 1 < parts.size(); ++i)
    if (auto const layer = number_of(parts[i + 1]);
        parts[i] == "layers" && layer && *layer >= layers)
      return true;
  return std::ranges::any_of(
      ignored, [&](std::string const& pattern) { return matches_glob(pattern, module); });
}

Json quantization_config(QuantRecipe const& recipe, std::vector<std::string> const& left) {
  Json list(Json::Array(left.begin(), left.end()));
  return recipe.library == QuantFor::transformers ? for_transformers(recipe, std::move(list))
                                                  : for_compressed_tensors(recipe, std::move(list));
}

}  // namespace reshard::huggingface
