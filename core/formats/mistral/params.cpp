#include "core/formats/mistral/params.hpp"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "core/formats/mistral/params_members.hpp"
#include "core/mapping/maps/config_defaults.hpp"

namespace reshard::mistral {
namespace {

class Params {
 public:
  Params(Json const& params, std::string_view place) : params_(params), place_(place) {}

  Json config() {
    refuse_forms();
    check_kinds();
    Json const moe = given("moe");
    Json const heads = given("qk_nope_head_dim");
    Json::Array const windows = windows_of_layers();
    std::string const type = is_true(heads)                      ? "mistral4"
                             : is_true(moe)                      ? "mixtral"
                             : is_true(given("llama_4_scaling")) ? "ministral3"
                             : !windows.empty()                  ? "ministral"
                                                                 : "mistral";
    if (!windows.empty() && type != "ministral")
      refuse(fmt::format("{} is {}, and transformers' {} has one window for all layers",
                         window_name(), stated_window().dump(), class_of(type)),
             other_files);
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
    if (!windows.empty()) config_.set("layer_types", layer_types(windows));
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
           : type == "ministral"  ? "MinistralForCausalLM"
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
    return either(stated, type == "mistral4"     ? 1'048'576
                          : type == "ministral3" ? 262'144
                          : type == "ministral"  ? 131'072
                                                 : 32'768);
  }

  /// Mistral's own program takes the window of either member, and refuses both.
  char const* window_name() const {
    return given("sliding_window").is_null() ? "_sliding_window" : "sliding_window";
  }

  Json stated_window() const { return given(window_name()); }

  /// The number is sometimes a text.
  std::int64_t window_of(Json const& stated) const {
    std::int64_t number = 0;
    if (auto const* const text = stated.text()) {
      auto const read = std::from_chars(text->data(), text->data() + text->size(), number);
      if (read.ec != std::errc() || read.ptr != text->data() + text->size()) number = 0;
    } else if (stated.integer() != nullptr) {
      number = *stated.integer();
    }
    if (number <= 0)
      refuse(fmt::format("{} is {}, and must be a number above zero", window_name(),
                         stated_window().dump()),
             "Correct it there, or remove it if every token sees all before it.");
    return number;
  }

  /// The only window of the model; null if every token sees all before it.
  Json window() const {
    Json const stated = stated_window();
    auto const* const items = stated.items();
    if (stated.is_null()) return stated;
    if (items == nullptr) return window_of(stated);
    Json result;
    for (Json const& item : *items) {
      if (item.is_null()) continue;
      Json const one = window_of(item);
      if (!result.is_null() && one != result)
        refuse(fmt::format("{} has windows of {} and {}, and transformers' classes have one",
                           window_name(), result.dump(), one.dump()),
               other_files);
      result = one;
    }
    return result;
  }

  /// The windows of neighbouring layers, which the next ones repeat; empty if all layers are alike.
  Json::Array windows_of_layers() const {
    if (!given("sliding_window").is_null() && !given("_sliding_window").is_null())
      refuse("it has both sliding_window and _sliding_window", "Remove one.");
    Json const stated = stated_window();
    if (stated.items() == nullptr) return {};
    Json::Array const& items = *stated.items();
    Json const layers = needed("n_layers");
    if (items.empty() || layers.integer() == nullptr ||
        *layers.integer() % static_cast<std::int64_t>(items.size()) != 0)
      refuse(fmt::format("{} has {} entries, and n_layers is {}, which must be a multiple",
                         window_name(), items.size(), layers.dump()),
             "Correct the file, or fetch it again.");
    auto const same = [&](Json const& item) { return item.is_null() == items.front().is_null(); };
    return std::ranges::all_of(items, same) ? Json::Array{} : items;
  }

  Json layer_types(Json::Array const& windows) const {
    Json result = Json::array();
    auto const layers = static_cast<std::size_t>(*needed("n_layers").integer());
    for (std::size_t layer = 0; layer < layers; ++layer)
      result.push(windows[layer % windows.size()].is_null() ? "full_attention"
                                                            : "sliding_attention");
    return result;
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
        type == "mistral4" || is_true(stated_window()) ? 10'000.0 : 1'000'000.0;
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
    bool const plain = type == "mistral" || type == "ministral";
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

}  // namespace

Json config_of_params(Json const& params, std::string_view place) {
  return Params(params, place).config();
}

}  // namespace reshard::mistral
