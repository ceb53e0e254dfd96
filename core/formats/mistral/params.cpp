#include "core/formats/mistral/params.hpp"

#include <array>
#include <charconv>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "core/mapping/config_defaults.hpp"

namespace reshard::mistral {
namespace {

/// Members of one meaning: params.json's and config.json's.
using Names = std::pair<char const*, char const*>;

constexpr std::array sizes = {Names{"dim", "hidden_size"},
                              Names{"n_layers", "num_hidden_layers"},
                              Names{"hidden_dim", "intermediate_size"},
                              Names{"n_heads", "num_attention_heads"},
                              Names{"vocab_size", "vocab_size"},
                              Names{"norm_eps", "rms_norm_eps"}};

constexpr std::array latent = {
    Names{"q_lora_rank", "q_lora_rank"}, Names{"kv_lora_rank", "kv_lora_rank"},
    Names{"qk_rope_head_dim", "qk_rope_head_dim"}, Names{"qk_nope_head_dim", "qk_nope_head_dim"},
    Names{"v_head_dim", "v_head_dim"}};

/// Of mistral4: members of "moe", with what transformers' converter takes without them.
struct MoeName {
  char const* params;
  char const* config;
  double otherwise;
};
constexpr std::array moe_names = {MoeName{"num_experts", "n_routed_experts", 128},
                                  MoeName{"num_experts_per_tok", "num_experts_per_tok", 4},
                                  MoeName{"first_k_dense_replace", "first_k_dense_replace", 0},
                                  MoeName{"num_shared_experts", "n_shared_experts", 1},
                                  MoeName{"expert_hidden_dim", "moe_intermediate_size", 2048},
                                  MoeName{"num_expert_groups", "n_group", 1},
                                  MoeName{"num_expert_groups_per_tok", "topk_group", 1}};

constexpr std::array yarn_names = {
    Names{"original_max_position_embeddings", "original_max_position_embeddings"},
    Names{"factor", "factor"}, Names{"beta", "beta_fast"}, Names{"alpha", "beta_slow"}};

bool is_true(Json const& value) {
  if (auto const* number = value.integer()) return *number != 0;
  if (auto const* truth = value.boolean()) return *truth;
  if (auto const* members = value.members()) return !members->empty();
  return value.real() != nullptr || (value.text() != nullptr && !value.text()->empty()) ||
         (value.items() != nullptr && !value.items()->empty());
}

Json either(Json value, Json otherwise) {
  return value.is_null() ? std::move(otherwise) : std::move(value);
}

Json as_real(Json const& value) {
  auto const* number = value.integer();
  return number == nullptr ? value : Json(static_cast<double>(*number));
}

class Params {
 public:
  Params(Json const& params, std::string_view place) : params_(params), place_(place) {}

  Json config() {
    refuse_forms();
    check_kinds();
    Json const moe = given("moe");
    Json const heads = given("qk_nope_head_dim");
    std::string const type = is_true(heads)                      ? "mistral4"
                             : is_true(moe)                      ? "mixtral"
                             : is_true(given("llama_4_scaling")) ? "ministral3"
                                                                 : "mistral";
    if (type == "mistral4" && !is_true(moe))
      refuse("latent attention (qk_nope_head_dim) without \"moe\" has no class in transformers",
             other_files);
    if (type == "mixtral" && is_true(fact(moe, "num_shared_experts")))
      refuse("shared experts without latent attention have no class in transformers", other_files);
    config_.set("architectures", Json::array().push(class_of(type)));
    config_.set("model_type", type);
    for (auto const& [own, theirs] : sizes) config_.set(theirs, needed(own));
    config_.set("num_key_value_heads", either(given("n_kv_heads"), needed("n_heads")));
    if (type != "mistral4" && !given("head_dim").is_null())
      config_.set("head_dim", given("head_dim"));
    config_.set("hidden_act", "silu");
    config_.set("max_position_embeddings", longest(type));
    config_.set("sliding_window", window());
    config_.set("tie_word_embeddings", is_true(given("tied_embeddings")));
    if (type == "mixtral") add_mixtral(moe);
    if (type == "mistral4") add_latent(moe);
    add_rope(type);
    return std::move(config_);
  }

 private:
  static constexpr char const* other_files =
      "Use the model's Hugging Face files, if there are any.";

  static char const* class_of(std::string const& type) {
    return type == "mistral4"     ? "Mistral4ForCausalLM"
           : type == "mixtral"    ? "MixtralForCausalLM"
           : type == "ministral3" ? "Ministral3ForCausalLM"
                                  : "MistralForCausalLM";
  }

  [[noreturn]] void refuse(std::string const& why, std::string const& advice) const {
    fail(ErrorKind::source, "{}: {}. {}", place_, why, advice);
  }

  Json given(char const* name) const { return fact(params_, name); }

  Json needed(char const* name) const {
    Json value = given(name);
    if (value.integer() == nullptr && value.real() == nullptr)
      refuse(fmt::format("{} is {}, and a number is needed there", name,
                         value.is_null() ? "missing" : value.dump()),
             "Correct the file, or fetch it again.");
    return value;
  }

  /// Refuses what Mistral's own class would not take either: a text for a number, a truth, a table.
  void check_kinds() const {
    auto const check = [&](std::string const& name, char const* kind, bool fits) {
      if (Json const value = fact(params_, name); !value.is_null() && !fits)
        refuse(fmt::format("{} is {}, and {} is needed there", name, value.dump(), kind),
               "Correct the file, or fetch it again.");
    };
    auto const number = [](Json const& value) {
      return value.integer() != nullptr || value.real() != nullptr;
    };
    for (char const* name : {"n_kv_heads", "head_dim", "max_position_embeddings", "max_seq_len"})
      check(name, "an integer", given(name).integer() != nullptr);
    for (auto const& [own, theirs] : latent)
      check(own, "an integer", given(own).integer() != nullptr);
    check("rope_theta", "a number", number(given("rope_theta")));
    check("tied_embeddings", "true or false", given("tied_embeddings").boolean() != nullptr);
    for (char const* name : {"moe", "yarn", "llama_4_scaling"})
      check(name, "a table", given(name).members() != nullptr);
    for (MoeName const& one : moe_names)
      check(fmt::format("moe.{}", one.params), "an integer",
            fact(given("moe"), one.params).integer() != nullptr);
    check("moe.routed_scale", "a number", number(fact(given("moe"), "routed_scale")));
    for (auto const& [own, theirs] : yarn_names)
      check(fmt::format("yarn.{}", own), "a number", number(fact(given("yarn"), own)));
    check("yarn.apply_scale", "true or false",
          fact(given("yarn"), "apply_scale").boolean() != nullptr);
    check("llama_4_scaling.beta", "a number", number(fact(given("llama_4_scaling"), "beta")));
  }

  void refuse_forms() const {
    if (Json const type = given("model_type"); type.text() != nullptr && *type.text() == "mamba")
      refuse("model_type = \"mamba\" (Codestral Mamba) has no map",
             "Use the model's Hugging Face files.");
    if (Json const act = given("activation"); act.text() != nullptr && *act.text() != "silu")
      refuse(fmt::format("activation is {}, and Mistral's classes have silu", act.dump()),
             other_files);
  }

  Json longest(std::string const& type) const {
    Json const stated = either(given("max_position_embeddings"), given("max_seq_len"));
    return either(stated, type == "mistral4" ? 1'048'576 : type == "ministral3" ? 262'144 : 32'768);
  }

  /// The number is sometimes a text.
  Json window() const {
    Json const stated = given("sliding_window");
    if (stated.items() != nullptr)
      refuse("sliding_window is a list: layers of different windows (Ministral 8B) have no map",
             other_files);
    if (stated.is_null()) return stated;
    std::int64_t number = 0;
    if (auto const* const text = stated.text()) {
      auto const read = std::from_chars(text->data(), text->data() + text->size(), number);
      if (read.ec != std::errc() || read.ptr != text->data() + text->size()) number = 0;
    } else if (stated.integer() != nullptr) {
      number = *stated.integer();
    }
    if (number <= 0)
      refuse(fmt::format("sliding_window is {}, and must be a number above zero", stated.dump()),
             "Correct it there, or remove it if every token sees all before it.");
    return number;
  }

  void add_mixtral(Json const& moe) {
    for (char const* name : {"num_experts", "num_experts_per_tok"})
      if (fact(moe, name).integer() == nullptr)
        refuse(fmt::format("moe.{} is missing", name), "Correct the file, or fetch it again.");
    config_.set("num_local_experts", fact(moe, "num_experts"));
    config_.set("num_experts_per_tok", fact(moe, "num_experts_per_tok"));
  }

  void add_latent(Json const& moe) {
    for (auto const& [own, theirs] : latent) config_.set(theirs, given(own));
    for (MoeName const& one : moe_names)
      config_.set(one.config,
                  either(fact(moe, one.params), static_cast<std::int64_t>(one.otherwise)));
    config_.set("routed_scaling_factor", either(as_real(fact(moe, "routed_scale")), 1.0));
    config_.set("norm_topk_prob", true);
    if (Json const every = fact(moe, "route_every_n"); !every.is_null() && every != Json(1))
      refuse(fmt::format("moe.route_every_n = {}, and transformers' class has experts in every "
                         "layer behind the first dense ones",
                         every.dump()),
             other_files);
  }

  /// Mistral's own program: 10000 for a model with a window, where the file does not say.
  Json theta(std::string const& type) const {
    double const otherwise =
        type == "mistral4" || is_true(given("sliding_window")) ? 10'000.0 : 1'000'000.0;
    return either(as_real(given("rope_theta")), otherwise);
  }

  void add_rope(std::string const& type) {
    Json const yarn = given("yarn");
    if (!is_true(yarn) && (type == "ministral3" || type == "mistral4"))
      refuse("it has llama_4_scaling or latent attention, and no \"yarn\"", other_files);
    if (!is_true(yarn)) {
      config_.set("rope_theta", theta(type));
      return;
    }
    Json rope = Json::object();
    rope.set("rope_type", "yarn").set("rope_theta", theta(type));
    for (auto const& [own, theirs] : yarn_names) {
      Json const value = fact(yarn, own);
      if (value.is_null())
        refuse(fmt::format("yarn.{} is missing", own), "Correct the file, or fetch it again.");
      rope.set(theirs, own == yarn_names.front().first ? value : as_real(value));
    }
    Json const scaled = fact(yarn, "apply_scale");
    bool const plain = type == "mistral";
    if (!plain) {
      rope.set("mscale", 1.0).set("mscale_all_dim", 1.0);
      rope.set("llama_4_scaling_beta", either(fact(given("llama_4_scaling"), "beta"), 0.1));
    } else if (scaled.boolean() != nullptr && !*scaled.boolean()) {
      rope.set("attention_factor", 1.0);
    }
    if (type == "mistral4") {
      auto const turned = static_cast<double>(*needed("qk_rope_head_dim").integer());
      auto const still = static_cast<double>(*needed("qk_nope_head_dim").integer());
      rope.set("partial_rotary_factor", turned / (turned + still));
    }
    config_.set("rope_parameters", std::move(rope));
  }

  Json const& params_;
  std::string_view place_;
  Json config_ = Json::object();
};

class Config {
 public:
  Config(Json const& config, std::string_view place) : config_(config), place_(place) {}

  Json params() {
    Json const named = given("model_type");
    std::string const type = named.text() == nullptr ? "" : *named.text();
    refuse_forms(type);
    for (auto const& [own, theirs] : sizes) params_.set(own, given(theirs));
    params_.set("n_kv_heads", either(given("num_key_value_heads"), given("num_attention_heads")));
    if (type != "mistral4") params_.set("head_dim", head_size());
    params_.set("max_position_embeddings", given("max_position_embeddings"));
    params_.set("tied_embeddings", is_true(given("tie_word_embeddings")));
    if (type != "llama" && is_true(given("sliding_window")))
      params_.set("sliding_window", given("sliding_window"));
    if (type == "mixtral") {
      params_.set("moe", Json::object()
                             .set("num_experts", given("num_local_experts"))
                             .set("num_experts_per_tok", given("num_experts_per_tok")));
    } else if (type == "mistral4") {
      add_latent();
    }
    add_rope(type);
    return std::move(params_);
  }

 private:
  [[noreturn]] void refuse(std::string const& why) const {
    fail(ErrorKind::usage,
         "[target] format = \"mistral\": {} {}, which params.json cannot say. Choose huggingface.",
         place_, why);
  }

  Json given(std::string_view name) const { return fact(config_, name); }

  Json rope(std::string const& name) const {
    return either(given("rope_parameters." + name), given("rope_scaling." + name));
  }

  Json head_size() const {
    if (Json const stated = given("head_dim"); !stated.is_null()) return stated;
    Json const hidden = given("hidden_size");
    Json const heads = given("num_attention_heads");
    if (hidden.integer() == nullptr || heads.integer() == nullptr || *heads.integer() == 0)
      refuse("does not state the size of a head");
    return *hidden.integer() / *heads.integer();
  }

  void refuse_forms(std::string const& type) const {
    if (Json const act = given("hidden_act"); !act.is_null() && act != Json("silu"))
      refuse("has hidden_act = " + act.dump());
    for (char const* name : {"attention_bias", "mlp_bias"})
      if (is_true(given(name))) refuse(fmt::format("has {} = true", name));
    Json const layers = given("layer_types");
    for (std::size_t i = 1; layers.items() != nullptr && i < layers.items()->size(); ++i)
      if ((*layers.items())[i] != layers.items()->front())
        refuse("has layers with and without a window (layer_types)");
    if (Json const norm = given("norm_topk_prob"); type == "mistral4" && !is_true(norm))
      refuse("has norm_topk_prob = false");
  }

  void add_latent() {
    for (auto const& [own, theirs] : latent) params_.set(own, given(theirs));
    Json moe = Json::object();
    for (MoeName const& one : moe_names) moe.set(one.params, given(one.config));
    moe.set("routed_scale", given("routed_scaling_factor")).set("route_every_n", 1);
    params_.set("moe", std::move(moe));
  }

  void add_rope(std::string const& type) {
    Json const base = either(rope("rope_theta"), given("rope_theta"));
    params_.set("rope_theta", either(base, 10'000.0));
    Json const kind = either(rope("rope_type"), rope("type"));
    std::string const form = kind.text() == nullptr ? "default" : *kind.text();
    if (form != "default" && form != "yarn")
      refuse(fmt::format("scales its positions by {} (rope_parameters)", json_quoted(form)));
    if (form == "default") return;
    Json yarn = Json::object();
    for (auto const& [own, theirs] : yarn_names) yarn.set(own, rope(theirs));
    yarn.set("original_max_position_embeddings",
             either(rope("original_max_position_embeddings"), given("max_position_embeddings")));
    if (fact(yarn, "beta").is_null()) yarn.set("beta", 32.0);
    if (fact(yarn, "alpha").is_null()) yarn.set("alpha", 1.0);
    bool const grows = type == "ministral3" || type == "mistral4";
    Json const factor = rope("attention_factor");
    bool const plain = factor == Json(1.0) || factor == Json(1);
    if (!grows && !factor.is_null() && !plain)
      refuse("has attention_factor = " + factor.dump() + " (rope_parameters)");
    yarn.set("apply_scale", !grows && !plain);
    if (grows)
      params_.set("llama_4_scaling", Json::object()
                                         .set("original_max_position_embeddings",
                                              fact(yarn, "original_max_position_embeddings"))
                                         .set("beta", either(rope("llama_4_scaling_beta"), 0.1)));
    params_.set("yarn", std::move(yarn));
  }

  Json const& config_;
  std::string_view place_;
  Json params_ = Json::object();
};

}  // namespace

Json config_of_params(Json const& params, std::string_view place) {
  return Params(params, place).config();
}

Json params_of_config(Json const& config, std::string_view place) {
  return Config(config, place).params();
}

}  // namespace reshard::mistral
