#include "stages/plan/draft/fact_words.hpp"

#include <algorithm>
#include <array>

#include "core/mapping/maps/config_defaults.hpp"

namespace reshard {
namespace {

/// Words for one fact, those of most maps first.
std::vector<std::vector<std::string>> const& synonyms() {
  static std::vector<std::vector<std::string>> const words{
      {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks", "n_blocks"},
      {"hidden_size", "n_embd", "d_model", "hidden_dim", "model_dim", "embed_dim", "dim"},
      {"num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads"},
      {"num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "num_query_groups",
       "multi_query_group_num", "num_attention_groups"},
      {"head_dim", "kv_channels", "attention_head_dim", "head_size"},
      {"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "mlp_dim",
       "feed_forward_size"},
      {"vocab_size", "padded_vocab_size", "n_vocab", "vocabulary_size"},
      {"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length",
       "max_sequence_length"},
      {"rms_norm_eps", "layer_norm_eps", "norm_eps", "layernorm_epsilon", "layer_norm_epsilon"},
      {"num_experts", "num_local_experts", "n_routed_experts", "n_experts", "moe_num_experts",
       "num_moe_experts"},
      {"moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size",
       "expert_ffn_hidden_size", "expert_hidden_size"},
      {"num_experts_per_tok", "moe_top_k", "moe_topk", "top_k", "num_selected_experts"},
      {"first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"},
      {"n_shared_experts", "num_shared_experts", "num_shared_expert"},
      {"rope_theta", "rotary_base", "rope_base", "rotary_emb_base"},
      {"tie_word_embeddings", "tie_embeddings", "tied_embeddings"}};
  return words;
}

bool in_word(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         (letter >= '0' && letter <= '9') || letter == '_' || letter == '.';
}

}  // namespace

std::vector<OtherWord> other_words(std::vector<std::string> const& asked, Json const& facts,
                                   Index layers) {
  std::vector<OtherWord> result;
  for (std::string const& name : asked) {
    if (!fact(facts, name).is_null()) continue;
    for (std::vector<std::string> const& words : synonyms()) {
      if (std::find(words.begin(), words.end(), name) == words.end()) continue;
      auto const word = std::find_if(words.begin(), words.end(), [&](std::string const& other) {
        // A word that the map asks for as well is another choice of the map itself.
        return !fact(facts, other).is_null() &&
               std::find(asked.begin(), asked.end(), other) == asked.end();
      });
      if (word != words.end()) result.push_back({name, *word});
    }
    bool const counts_layers = name == synonyms().front().front();
    bool const known = !result.empty() && result.back().fact == name;
    if (!counts_layers || known || layers == 0 || facts.members() == nullptr) continue;
    for (auto const& [word, value] : *facts.members())
      if (value.integer() != nullptr && *value.integer() == layers) {
        result.push_back({name, word});
        break;
      }
  }
  return result;
}

std::string with_other_words(std::string_view expression, std::vector<OtherWord> const& words) {
  std::string result;
  bool quoted = false;
  for (std::size_t at = 0; at < expression.size();) {
    if (expression[at] == '\'') quoted = !quoted;
    std::size_t end = at;
    while (!quoted && end < expression.size() && in_word(expression[end])) ++end;
    if (end == at) {
      result += expression[at++];
      continue;
    }
    std::string_view const key = expression.substr(at, end - at);
    auto const word = std::find_if(words.begin(), words.end(),
                                   [&](OtherWord const& other) { return other.fact == key; });
    result += word == words.end() ? key : std::string_view(word->word);
    at = end;
  }
  return result;
}

std::string text_member(Json const& config) {
  static constexpr std::array<std::string_view, 4> members{"text_config", "llm_config",
                                                           "language_config", "thinker_config"};
  for (std::string_view const member : members) {
    Json const* inner = config.find(member);
    if (inner != nullptr && inner->members() != nullptr) return std::string(member);
  }
  return "";
}

}  // namespace reshard
