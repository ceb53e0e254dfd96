#include "core/formats/mistral/params.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "core/formats/mistral/params_members.hpp"
#include "core/mapping/maps/config_defaults.hpp"

namespace reshard::mistral {
namespace {

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
    if (Json const window = windows(); type != "llama" && is_true(window))
      params_.set("sliding_window", window);
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
    if (type != "ministral" && !like_each_other(given("layer_types")))
      refuse("has layers with and without a window (layer_types)");
    if (Json const norm = given("norm_topk_prob"); type == "mistral4" && !is_true(norm))
      refuse("has norm_topk_prob = false");
  }

  static bool like_each_other(Json const& layers) {
    return layers.items() == nullptr ||
           std::ranges::adjacent_find(*layers.items(), std::not_equal_to<>()) ==
               layers.items()->end();
  }

  /// One number for all layers, or as few entries as the layers repeat.
  Json windows() const {
    Json const window = given("sliding_window");
    Json const layers = given("layer_types");
    if (like_each_other(layers))
      return layers.items() != nullptr && !layers.items()->empty() &&
                     layers.items()->front() == Json("full_attention")
                 ? Json()
                 : window;
    Json::Array const& types = *layers.items();
    std::size_t period = 1;
    auto const repeats = [&] {
      if (types.size() % period != 0) return false;
      for (std::size_t layer = period; layer < types.size(); ++layer)
        if (types[layer] != types[layer - period]) return false;
      return true;
    };
    while (!repeats()) ++period;
    Json result = Json::array();
    for (std::size_t layer = 0; layer < period; ++layer)
      result.push(types[layer] == Json("sliding_attention") ? window : Json());
    return result;
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

Json params_of_config(Json const& config, std::string_view place) {
  return Config(config, place).params();
}

}  // namespace reshard::mistral
