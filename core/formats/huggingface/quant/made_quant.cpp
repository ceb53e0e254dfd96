#include "core/formats/huggingface/quant/made_quant.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"

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

/// Columns that share a scale; 0: all.
Index usual_columns(MadeQuant form) {
  switch (form) {
    case MadeQuant::mxfp8:
    case MadeQuant::mxfp4: return 32;
    case MadeQuant::nvfp4: return 16;
    case MadeQuant::fp8_channel:
    case MadeQuant::int8_channel: return 0;
    default: return 128;
  }
}

void set_block(QuantRecipe& recipe, std::string const& text) {
  bool const grid = recipe.form == MadeQuant::fp8_block;
  recipe.block_rows = grid ? 128 : 1;
  recipe.block_columns = usual_columns(recipe.form);
  if (text.empty()) return;
  if (grid && recipe.library == QuantFor::modelopt && text != "128x128")
    fail_block(text, "\"128x128\", the one block of ModelOpt's form");
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
  if (!recipe.is_packed())
    fail_block(text,
               "no block: this form has its own. It is for fp8-block, int4-group and int8-group");
  if (!columns || *columns % 8 != 0) fail_block(text, "a number of columns that 8 divides");
  recipe.block_columns = *columns;
}

template <std::size_t n>
bool is_one_of(std::string_view word, std::array<std::string_view, n> const& words) {
  return std::ranges::find(words, word) != words.end();
}

/// Of a tower or projector beside the language model.
bool is_beside(std::string_view part) {
  constexpr std::array<std::string_view, 9> beginnings = {
      "visual", "vision", "audio", "image", "multi_modal", "mm_", "vit", "vqmodel", "speech"};
  return std::ranges::any_of(beginnings,
                             [&](std::string_view one) { return part.starts_with(one); });
}

bool is_small(std::string_view part) {
  constexpr std::array<std::string_view, 14> names = {
      "gate",       "router",     "shared_expert_gate", "weights_proj",
      "in_proj_ba", "in_proj_a",  "in_proj_b",          "x_proj",
      "dt_proj",    "conv1d",     "classifier",         "eh_proj",
      "fc",         "shared_head"};
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
    case MadeQuant::int8_group: {
      bool const four = recipe.form == MadeQuant::int4_group;
      group.name = recipe.block_columns != 128 ? "config_group_0" : four ? "W4A16" : "W8A16";
      group.format = "pack-quantized";
      group.weights = number(four ? 4 : 8, "int", "group", false);
      group.weights.set("group_size", recipe.block_columns);
      break;
    }
    case MadeQuant::int8_channel:
      group.name = "W8A8";
      group.format = "int-quantized";
      group.weights = number(8, "int", "channel", false);
      group.inputs = number(8, "int", "token", true);
      break;
    case MadeQuant::mxfp4:
      group.name = "MXFP4A16";
      group.format = "mxfp4-pack-quantized";
      group.weights = number(4, "float", "group", false);
      group.weights.set("group_size", Index{32}).set("scale_dtype", "torch.uint8");
      break;
    case MadeQuant::nvfp4:
      group.name = "NVFP4A16";
      group.format = "nvfp4-pack-quantized";
      group.weights = number(4, "float", "tensor_group", false);
      group.weights.set("group_size", Index{16}).set("scale_dtype", "torch.float8_e4m3fn");
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
  if (recipe.form == MadeQuant::mxfp4)
    return result.set("modules_to_not_convert", std::move(left)).set("quant_method", "mxfp4");
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

constexpr char const* modelopt_release = "0.47.0";

/// What ModelOpt calls a form, and the columns of a block that it states; 0 for none.
std::pair<char const*, Index> modelopt_algorithm(MadeQuant form) {
  switch (form) {
    case MadeQuant::fp8_block: return {"fp8_pb_wo", 0};
    case MadeQuant::fp8_channel: return {"FP8_PER_CHANNEL_PER_TOKEN", 0};
    case MadeQuant::mxfp8: return {"MXFP8", 32};
    default: return {"W4A16_NVFP4", 16};
  }
}

Json modelopt_producer() { return Json().set("name", "modelopt").set("version", modelopt_release); }

Json for_modelopt(QuantRecipe const& recipe, Json left) {
  Json result;
  if (recipe.form == MadeQuant::nvfp4) {
    Json weights;
    weights.set("dynamic", false).set("num_bits", 4).set("type", "float").set("group_size", 16);
    Json group;
    group.set("weights", std::move(weights)).set("targets", Json(Json::Array{Json("Linear")}));
    result.set("config_groups", Json().set("group_0", std::move(group)));
  }
  result.set("ignore", std::move(left))
      .set("quant_algo", modelopt_algorithm(recipe.form).first)
      .set("producer", modelopt_producer())
      .set("quant_method", "modelopt");
  return result;
}

void check_library(QuantRecipe const& recipe, std::string_view model_type) {
  bool const blocks = recipe.form == MadeQuant::fp8_block;
  bool const experts = recipe.form == MadeQuant::mxfp4 && model_type == "gpt_oss";
  if (recipe.library == QuantFor::transformers && !blocks && !experts)
    fail(ErrorKind::usage,
         "[target] quant_for = \"transformers\": transformers has blocks of FP8, and MXFP4 of "
         "gpt-oss. Set quant = \"fp8-block\" (MXFP8 are its blocks of 1x32 with quant_scales = "
         "\"e8m0\"), or quant_for = \"compressed-tensors\".");
  bool const served = blocks || recipe.form == MadeQuant::fp8_channel ||
                      recipe.form == MadeQuant::mxfp8 || recipe.form == MadeQuant::nvfp4;
  if (recipe.library == QuantFor::modelopt && !served)
    fail(ErrorKind::usage,
         "[target] quant_for = \"modelopt\": of the forms that ModelOpt makes without calibration "
         "engines read fp8-block, fp8-channel, mxfp8 and nvfp4. Set quant to one of these, or "
         "quant_for = \"compressed-tensors\".");
}

}  // namespace

bool QuantRecipe::needs_complete_blocks() const {
  return block_rows == 1 && block_columns > 0 && form != MadeQuant::fp8_block;
}

DType QuantRecipe::code_dtype() const {
  if (is_packed()) return DType::i32;
  if (form == MadeQuant::int8_channel) return DType::i8;
  return form == MadeQuant::mxfp4 || form == MadeQuant::nvfp4 ? DType::u8 : DType::f8_e4m3;
}

std::string_view QuantRecipe::codes_name() const {
  if (stacks) return "_blocks";
  bool const packed = is_packed() || code_dtype() == DType::u8;
  return packed && library == QuantFor::compressed_tensors ? ".weight_packed" : ".weight";
}

std::string_view QuantRecipe::scales_name() const {
  if (stacks) return "_scales";
  return library == QuantFor::transformers ? ".weight_scale_inv" : ".weight_scale";
}

std::string_view QuantRecipe::second_name() const {
  if (form != MadeQuant::nvfp4) return "";
  return library == QuantFor::modelopt ? ".weight_scale_2" : ".weight_global_scale";
}

QuantRecipe recipe_of(TargetOptions const& options, std::string_view model_type) {
  QuantRecipe recipe;
  recipe.form = options.quant;
  bool const experts = options.quant == MadeQuant::mxfp4 && model_type == "gpt_oss";
  recipe.library = options.quant_for != QuantFor::automatic ? options.quant_for
                   : options.quant == MadeQuant::fp8_block || experts
                       ? QuantFor::transformers
                       : QuantFor::compressed_tensors;
  check_library(recipe, model_type);
  recipe.stacks = experts && recipe.library == QuantFor::transformers;
  recipe.power_scales = options.quant_scales == QuantScales::e8m0;
  if (options.quant_scales != QuantScales::automatic &&
      (recipe.library != QuantFor::transformers || experts))
    fail(ErrorKind::usage,
         "[target] quant_scales: only blocks of FP8 for transformers have a choice of scales. "
         "Remove the key, or set quant = \"fp8-block\" and quant_for = \"transformers\".");
  set_block(recipe, options.quant_block);
  recipe.ignored = parts_between(';', options.quant_ignore);
  return recipe;
}

std::vector<std::vector<std::string_view>> const& joined_modules() {
  static std::vector<std::vector<std::string_view>> const known = {
      {"q_proj", "k_proj", "v_proj"},
      {"gate_proj", "up_proj"},
      {"q_a_proj", "kv_a_proj_with_mqa"},
      {"w1", "w3"}};
  return known;
}

bool is_embedding(std::string_view module) {
  std::string_view const last = dotted_parts(module).back();
  return last.find("embed") != std::string_view::npos || last == "wte" || last == "wpe";
}

bool is_of_prediction(std::string_view module, Index layers) {
  auto const parts = dotted_parts(module);
  for (std::size_t i = 0; layers > 0 && i + 1 < parts.size(); ++i)
    if (auto const layer = number_of(parts[i + 1]);
        parts[i] == "layers" && layer && *layer >= layers)
      return true;
  return std::ranges::any_of(parts, [](std::string_view part) { return part.starts_with("mtp"); });
}

bool keeps_weight(std::string_view module, std::vector<std::string> const& ignored) {
  auto const parts = dotted_parts(module);
  if (is_embedding(module) || is_output(parts.back()) || parts.back().ends_with("norm") ||
      std::ranges::any_of(parts, is_beside) || std::ranges::any_of(parts, is_small))
    return true;
  return std::ranges::any_of(
      ignored, [&](std::string const& pattern) { return matches_glob(pattern, module); });
}

Json quantization_config(QuantRecipe const& recipe, std::vector<std::string> const& left) {
  Json list(Json::Array(left.begin(), left.end()));
  if (recipe.library == QuantFor::transformers) return for_transformers(recipe, std::move(list));
  return recipe.library == QuantFor::modelopt ? for_modelopt(recipe, std::move(list))
                                              : for_compressed_tensors(recipe, std::move(list));
}

Json modelopt_config(QuantRecipe const& recipe, std::vector<std::string> const& left) {
  if (recipe.library != QuantFor::modelopt) return {};
  auto const [algorithm, columns] = modelopt_algorithm(recipe.form);
  Json quantization;
  quantization.set("quant_algo", algorithm).set("kv_cache_quant_algo", Json());
  if (columns > 0) quantization.set("group_size", columns);
  quantization.set("exclude_modules", Json(Json::Array(left.begin(), left.end())));
  Json result;
  return result.set("producer", modelopt_producer()).set("quantization", std::move(quantization));
}

}  // namespace reshard::huggingface
