#include "stages/plan/quant/quantised_modules.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/text/shape_text.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

constexpr std::string_view weight_ending = ".weight";

bool is_linear(Plain const& one) {
  return std::string_view(one.name).ends_with(weight_ending) && one.shape.size() == 2 &&
         is_weight(one.dtype);
}

}  // namespace

bool is_weight(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32;
}

/// Experts in one tensor: their rows may be columns of the matrices. A kernel of a convolution
/// has one channel. DBRX has the rows of all experts below one another.
bool is_stack(Plain const& one) {
  std::string_view const name = one.name;
  if (!is_weight(one.dtype) || name.ends_with("bias")) return false;
  if (one.shape.size() == 3) return one.shape[1] > 1 && one.shape[2] > 1;
  return one.shape.size() == 2 && name.find(".experts.mlp.") != name.npos &&
         !name.ends_with(weight_ending);
}

void refuse_quantised(std::string const& name, DType dtype) {
  bool const coded = dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 ||
                     dtype == DType::f8_e8m0 || dtype == DType::f4 || dtype == DType::f4_x2;
  if (coded || name.ends_with(".weight_packed") || name.ends_with(".qweight") ||
      name.ends_with("_proj_blocks"))
    fail(ErrorKind::usage,
         "[target] quant: '{}' is {}, so the source is quantised already. Set model.quant = "
         "\"dequantise-bf16\" to quantise its values again, or remove target.quant.",
         name, reshard::name(dtype));
}

std::optional<std::string> QuantisedModules::module_of(Plain const& one) {
  std::string const& name = one.name;
  refuse_codes(one);
  if (name.ends_with("lm_head.weight")) output_stored_ = true;
  bool const stack = is_stack(one);
  if (!stack && !is_linear(one)) return std::nullopt;
  std::string module = stack ? name : name.substr(0, name.size() - weight_ending.size());
  if (huggingface::keeps_weight(module, recipe_.ignored) ||
      (!draft_ && huggingface::is_of_prediction(module, layers_))) {
    if (stack) module.resize(module.rfind('.'));
    bool const listed =
        stack ? module.ends_with("experts") && std::ranges::find(left_, module) == left_.end()
              : recipe_.library == huggingface::QuantFor::modelopt ||
                    !huggingface::is_embedding(module);
    if (listed) left_.push_back(module);
    return std::nullopt;
  }
  if (stack != recipe_.stacks) {
    if (stack) refuse_stack(one);
    return std::nullopt;
  }
  return module;
}

void QuantisedModules::refuse_codes(Plain const& one) const {
  refuse_quantised(one.name, one.dtype);
  std::string const& name = one.name;
  for (std::string_view const what : {".input_scale", ".k_scale", ".v_scale"})
    if (name.ends_with(what))
      fail(ErrorKind::usage,
           "[target] quant: '{}' is a static scale of activations, which comes from a "
           "calibration. This program does not calibrate: drop it from the source, or remove "
           "target.quant.",
           name);
}

void QuantisedModules::refuse_stack(Plain const& one) const {
  fail(ErrorKind::usage,
       "[target] quant: '{}' {} holds the experts of a layer in one tensor, which engines {}, or "
       "leave the experts as they are with target.quant_ignore = \"*.experts.*\".",
       one.name, shape_text(one.shape),
       model_type_ == "gpt_oss"
           ? "read as MXFP4 alone. Set target.quant = \"mxfp4\""
           : "do not read in this form. Write the folder without target.quant");
}

std::vector<std::string> QuantisedModules::left() const {
  if (recipe_.stacks)
    return {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head"};
  std::vector<std::string> all = left_;
  if (!output_stored_) all.insert(all.begin(), "lm_head");  // tied: engines build it, too
  if (recipe_.library == huggingface::QuantFor::modelopt) std::ranges::sort(all);
  return all;
}

std::vector<std::string> QuantisedModules::idle_patterns(std::span<Plain const> tensors) const {
  std::vector<std::string> idle;
  for (std::string const& pattern : recipe_.ignored)
    if (std::ranges::none_of(tensors, [&](Plain const& one) {
          std::string_view name = one.name;
          if (name.ends_with(weight_ending)) name.remove_suffix(weight_ending.size());
          return matches_glob(pattern, name) && (is_linear(one) || is_stack(one));
        }))
      idle.push_back(pattern);
  return idle;
}

std::map<std::string, std::shared_ptr<JoinedWeights const>, std::less<>> QuantisedModules::joined(
    std::span<Plain const> tensors) const {
  std::map<std::string, std::shared_ptr<JoinedWeights const>, std::less<>> result;
  if (recipe_.second_name().empty()) return result;
  std::map<std::string_view, Plain const*> by_name;
  for (Plain const& one : tensors) by_name.emplace(one.name, &one);
  for (auto const& group : huggingface::joined_modules())
    for (auto const& [name, first] : by_name) {
      std::string const ending = fmt::format(".{}{}", group.front(), weight_ending);
      if (!name.ends_with(ending)) continue;
      std::string_view const parent = name.substr(0, name.size() - ending.size());
      auto weights = std::make_shared<JoinedWeights>();
      std::vector<std::string> names;
      for (std::string_view const module : group)
        if (auto const at = by_name.find(
                names.emplace_back(fmt::format("{}.{}{}", parent, module, weight_ending)));
            at != by_name.end())
          weights->push_back(at->second->gathered);
      if (weights->size() == group.size())
        for (std::string const& each : names) result[each] = weights;
    }
  return result;
}

}  // namespace reshard
