#pragma once

#include <array>
#include <utility>

#include "core/base/text/json.hpp"

namespace reshard::mistral {

/// Members of one meaning: params.json's and config.json's.
using Names = std::pair<char const*, char const*>;

inline constexpr std::array sizes = {Names{"dim", "hidden_size"},
                                     Names{"n_layers", "num_hidden_layers"},
                                     Names{"hidden_dim", "intermediate_size"},
                                     Names{"n_heads", "num_attention_heads"},
                                     Names{"vocab_size", "vocab_size"},
                                     Names{"norm_eps", "rms_norm_eps"}};

inline constexpr std::array latent = {
    Names{"q_lora_rank", "q_lora_rank"}, Names{"kv_lora_rank", "kv_lora_rank"},
    Names{"qk_rope_head_dim", "qk_rope_head_dim"}, Names{"qk_nope_head_dim", "qk_nope_head_dim"},
    Names{"v_head_dim", "v_head_dim"}};

/// Of mistral4: members of "moe", with what transformers' converter takes without them.
struct MoeName {
  char const* params;
  char const* config;
  double otherwise;
};
inline constexpr std::array moe_names = {
    MoeName{"num_experts", "n_routed_experts", 128},
    MoeName{"num_experts_per_tok", "num_experts_per_tok", 4},
    MoeName{"first_k_dense_replace", "first_k_dense_replace", 0},
    MoeName{"num_shared_experts", "n_shared_experts", 1},
    MoeName{"expert_hidden_dim", "moe_intermediate_size", 2048},
    MoeName{"num_expert_groups", "n_group", 1},
    MoeName{"num_expert_groups_per_tok", "topk_group", 1}};

inline constexpr std::array yarn_names = {
    Names{"original_max_position_embeddings", "original_max_position_embeddings"},
    Names{"factor", "factor"}, Names{"beta", "beta_fast"}, Names{"alpha", "beta_slow"}};

inline bool is_true(Json const& value) {
  if (auto const* number = value.integer()) return *number != 0;
  if (auto const* truth = value.boolean()) return *truth;
  if (auto const* members = value.members()) return !members->empty();
  return value.real() != nullptr || (value.text() != nullptr && !value.text()->empty()) ||
         (value.items() != nullptr && !value.items()->empty());
}

inline Json either(Json value, Json otherwise) {
  return value.is_null() ? std::move(otherwise) : std::move(value);
}

inline Json as_real(Json const& value) {
  auto const* number = value.integer();
  return number == nullptr ? value : Json(static_cast<double>(*number));
}

}  // namespace reshard::mistral
