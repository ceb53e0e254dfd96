#include "tests/core/mapping/slow_megatron.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace reshard::test {
namespace {

constexpr Index layers = 3, heads = 2, dim = 2, hidden = 6, inter = 8, moe_inter = 4,
                shared_inter = 2, vocab = 13;

using Indices = std::vector<std::pair<std::string, Index>>;

bool take(std::string& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.erase(0, prefix.size());
  return true;
}

/// A number that the name says, with what must follow it; or else the next dimension in front.
Index number_or_front(std::string& name, std::vector<Index>& at, std::string_view follows) {
  Index value = 0;
  auto const [end, status] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (status == std::errc()) {
    name.erase(0, static_cast<std::size_t>(end - name.data()));
    take(name, follows);
    return value;
  }
  value = at.front();
  at.erase(at.begin());
  return value;
}

std::string fused_attention(Index row, Index column, Indices indices) {
  Index const rows = (heads + 2) * dim;
  Index const part = row % rows / dim;
  indices.insert(indices.end(), {{"group", row / rows}, {"dim", row % dim}, {"hidden", column}});
  if (part < heads) indices.emplace_back("head", part);
  return element_text(part < heads ? "attn.q" : part == heads ? "attn.k" : "attn.v", indices);
}

std::string attention(std::string name, std::vector<Index> const& at, Indices indices) {
  if (name == "linear_qkv.weight") return fused_attention(at[0], at[1], std::move(indices));
  indices.emplace_back("hidden", at[0]);
  if (name == "linear_qkv.layer_norm_weight") return element_text("attn.norm", indices);
  indices.insert(
      indices.end(),
      {{"group", at[1] / (heads * dim)}, {"head", at[1] / dim % heads}, {"dim", at[1] % dim}});
  return element_text("attn.o", indices);
}

/// `name` is what is left behind "linear_": "fc1.weight", "fc1.weight_v", "fc2.weight".
std::string gated(std::string const& name, std::string const& tensors, std::string const& axis,
                  Index size, std::vector<Index> const& at, Indices indices) {
  bool const down = name.starts_with("fc2");
  bool const up = name.ends_with("_v") || (!name.ends_with("_w") && at[0] >= size);
  indices.emplace_back("hidden", down ? at[0] : at[1]);
  indices.emplace_back(axis, (down ? at[1] : at[0]) % size);
  return element_text(tensors + (down ? ".down" : up ? ".up" : ".gate"), indices);
}

std::string experts(std::string name, std::vector<Index> at, Indices indices) {
  Index expert = 0;
  if (take(name, "experts.") || take(name, "local_experts.")) {
    expert = number_or_front(name, at, ".");
    take(name, "linear_");
  } else {  // linear_fc1.weight3_w
    take(name, "linear_");
    std::size_t const digits = name.find_first_of("0123456789", name.find("weight"));
    std::string number = name.substr(digits);
    expert = number_or_front(number, at, "");
    name = name.substr(0, digits) + number;
  }
  indices.emplace_back("expert", expert);
  return gated(name, "experts", "moe_inter", moe_inter, at, std::move(indices));
}

std::string in_layer(std::string name, std::vector<Index> const& at, Index layer) {
  Indices indices{{"layer", layer}};
  if (take(name, "self_attention.")) return attention(name, at, indices);
  if (take(name, "mlp.experts.")) return experts(name, at, indices);
  if (take(name, "mlp.shared_experts.linear_"))
    return gated(name, "shared", "shared_inter", shared_inter, at, indices);
  if (name == "mlp.router.weight") {
    indices.insert(indices.end(), {{"expert", at[0]}, {"hidden", at[1]}});
    return element_text("router.weight", indices);
  }
  if (name == "pre_mlp_layernorm.weight" || name == "mlp.linear_fc1.layer_norm_weight") {
    indices.emplace_back("hidden", at[0]);
    return element_text("ffn.norm", indices);
  }
  take(name, "mlp.linear_");
  return gated(name, "ffn", "inter", inter, at, indices);
}

std::string prediction(std::string const& name, std::vector<Index> const& at) {
  if (name == "eh_proj.weight")
    return element_text(at[1] < hidden ? "mtp.e" : "mtp.h",
                        {{"eh", at[0]}, {"hidden", at[1] % hidden}});
  std::string const tensor =
      name == "final_layernorm.weight" ? "mtp.norm" : "mtp." + name.substr(0, name.find('.'));
  return element_text(tensor, {{"hidden", at[0]}});
}

}  // namespace

Json slow_args() {
  return parse_json(
      R"({"num_layers": 3, "mtp_num_layers": 1, "hidden_size": 6, "num_attention_heads": 8, "num_query_groups": 4, "kv_channels": 2,
      "ffn_hidden_size": 8, "num_experts": 4, "moe_ffn_hidden_size": 4, "moe_shared_expert_intermediate_size": 2, "vocab_size": 13,
      "make_vocab_size_divisible_by": 4, "swiglu": true, "untie_embeddings_and_output_weights": true})",
      "args");
}

std::string element_text(std::string const& tensor,
                         std::vector<std::pair<std::string, Index>> indices) {
  std::sort(indices.begin(), indices.end());
  std::string text = tensor;
  for (auto const& [axis, index] : indices) text += fmt::format(" {}={}", axis, index);
  return text;
}

std::string slow_element(std::string name, std::vector<Index> at) {
  if (take(name, "decoder.final_layernorm."))
    return element_text("final_norm", {{"hidden", at[0]}});
  if (take(name, "decoder.layers.")) {
    Index const layer = number_or_front(name, at, ".");
    return in_layer(name, at, layer);
  }
  if (take(name, "mtp.layers.0.")) {
    bool const inner = take(name, "transformer_layer.") || take(name, "mtp_model_layer.");
    return inner ? in_layer(name, at, layers) : prediction(name, at);
  }
  if (at[0] >= vocab) return "";
  return element_text(name == "output_layer.weight" ? "lm_head" : "embed",
                      {{"vocab", at[0]}, {"hidden", at[1]}});
}

}  // namespace reshard::test
