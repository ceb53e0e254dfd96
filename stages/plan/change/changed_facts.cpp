#include "stages/plan/change/changed_facts.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/mapping/maps/config_defaults.hpp"

namespace reshard {
namespace {

template <std::size_t N>
bool is_in(std::array<std::string_view, N> const& keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

constexpr std::array<std::string_view, 5> layer_counts = {
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_num_layers"};
/// How many layers are of a kind, the first ones.
constexpr std::array<std::string_view, 7> leading_counts = {
    "first_k_dense_replace", "num_dense_layers", "n_dense_layers",   "moe_layer_start_index",
    "max_window_layers",     "num_hash_layers",  "moe_n_hash_layers"};
/// Every so many-th layer is of a kind, where no list says it layer by layer.
constexpr std::array<std::string_view, 14> intervals = {
    "full_attention_interval",    "sliding_window_pattern",
    "_sliding_window_pattern",    "interleave_moe_layer_step",
    "decoder_sparse_step",        "moe_layer_freq",
    "moe_layer_interval",         "attn_layer_period",
    "expert_layer_period",        "no_rope_layer_interval",
    "global_attn_every_n_layers", "linear_attention_freq",
    "window_attn_skip_freq",      "layer_group_size"};
/// Numbers of layers, counted from 0; those of linear_attn_config count from 1.
constexpr std::array<std::string_view, 4> layer_numbers = {
    "mlp_only_layers", "full_attn_idxs", "attn_layer_indices", "full_attention_layers"};
constexpr std::array<std::string_view, 2> numbers_from_one = {"kda_layers", "full_attn_layers"};
constexpr std::array<std::string_view, 5> expert_counts = {"num_experts", "n_routed_experts",
                                                           "num_local_experts",
                                                           "num_routed_experts", "moe_num_experts"};
constexpr std::array<std::string_view, 6> chosen_counts = {
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k",
    "moe_router_topk",     "num_selected_experts"};
constexpr std::array<std::string_view, 3> group_counts = {"n_group", "num_expert_group",
                                                          "moe_router_num_groups"};
constexpr std::array<std::string_view, 5> depth_counts = {"num_nextn_predict_layers",
                                                          "mtp_num_hidden_layers", "mtp_num_layers",
                                                          "num_mtp_layers", "num_mtp_modules"};
/// Lists of one item for each layer have other names.
constexpr std::array<std::string_view, 5> no_layers = {"architectures", "tags", "languages",
                                                       "ssm_multipliers", "mlp_multipliers"};

class Changer {
 public:
  Changer(FactChanges const& changes, std::string const& place)
      : changes_(changes), place_(place) {}

  void run(Json const& facts, std::vector<std::string> const& path) {
    Json::Object const* const members = facts.members();
    if (members == nullptr) return;
    facts_ = &facts;
    has_layer_types_ = false;
    for (auto const& [key, value] : *members)
      if (key == "layer_types" && value.items() != nullptr) has_layer_types_ = true;
    for (auto const& [key, value] : *members) {
      auto changed = changed_value(key, value);
      if (key == "linear_attn_config" && changes_.kept_layers) {
        Json inner = value;
        for (std::string_view const list : numbers_from_one)
          if (Json const* const numbers = value.find(list))
            if (auto left = kept_numbers(*numbers, 1)) inner.set(list, std::move(*left));
        if (inner != value) changed = std::move(inner);
      }
      if (!changed || *changed == value) continue;
      huggingface::ConfigPatch& patch = patches.emplace_back();
      patch.path = path;
      patch.path.push_back(key);
      patch.value = std::move(*changed);
    }
  }

  std::vector<huggingface::ConfigPatch> patches;

 private:
  std::optional<Json> changed_value(std::string const& key, Json const& value) const {
    if (auto const* const number = value.integer()) return changed_number(key, *number);
    if (value.items() != nullptr) return changed_list(key, value);
    if (value.members() != nullptr) return changed_members(value);
    if (auto const* const text = value.text()) return changed_pattern(key, *text);
    return std::nullopt;
  }

  bool is_prefix() const { return changes_.kept_layers->back() + 1 == kept_count(); }
  Index kept_count() const {
    return changes_.kept_layers ? static_cast<Index>(changes_.kept_layers->size())
                                : changes_.layers;
  }

  std::optional<Json> changed_number(std::string const& key, Index number) const {
    if (changes_.drop_depths && is_in(depth_counts, key)) return Json(0);
    if (changes_.kept_layers) {
      if (is_in(layer_counts, key) && number == changes_.layers) return Json(kept_count());
      if (is_in(leading_counts, key) && number < changes_.layers)
        return Json(static_cast<Index>(std::ranges::count_if(
            *changes_.kept_layers, [&](Index layer) { return layer < number; })));
      if (is_in(intervals, key) && number > 1 && !is_prefix() && !has_layer_types_)
        fail(
            ErrorKind::usage,
            "[target] keep_layers: {}: {} = {}, and no list says of each layer what it is. Keep the "
            "first layers without a gap.",
            place_, key, number);
      if (key == "num_kv_shared_layers" && number > 0)
        fail(ErrorKind::usage,
             "[target] keep_layers: {}: {} = {}: the last layers take keys and values from others, "
             "and cannot be left out or moved. Keep all layers.",
             place_, key, number);
    }
    if (!changes_.kept_experts.empty()) {
      if (is_in(expert_counts, key) && number == changes_.experts)
        return Json(changes_.kept_expert_count);
      if (is_in(chosen_counts, key) && number > changes_.kept_expert_count)
        fail(ErrorKind::usage,
             "[target] keep_experts: {} are kept, and {} has {} = {}. Keep at least as many.",
             changes_.kept_expert_count, place_, key, number);
      if (is_in(group_counts, key) && number > 1) check_groups(key, number);
    }
    if (changes_.vocab > 0) {
      if (key == "vocab_size") return Json(changes_.vocab);
      bool const is_id = key.ends_with("_token_id") || key.ends_with("_token_index");
      if (is_id && number >= changes_.vocab) refuse_id(key, number);
    }
    return std::nullopt;
  }

  [[noreturn]] void refuse_id(std::string const& key, Index id) const {
    fail(ErrorKind::usage,
         "[target] vocab_size = {}: {} has {} = {}, a row that the target would not have. Keep at "
         "least {} rows.",
         changes_.vocab, place_, key, id, id + 1);
  }

  /// The router chooses groups of neighbouring experts first.
  void check_groups(std::string const& key, Index groups) const {
    Index const size = changes_.experts / groups;
    for (std::size_t layer = 0; layer < changes_.kept_experts.size(); ++layer) {
      auto const& kept = changes_.kept_experts[layer];
      if (kept.empty()) continue;
      std::vector<Index> held(static_cast<std::size_t>(groups));
      for (Index const expert : kept) ++held[static_cast<std::size_t>(expert / size)];
      auto const [least, most] = std::ranges::minmax_element(held);
      if (*least != *most)
        fail(
            ErrorKind::usage,
            "[target] keep_experts: {}: {} = {}, and of the groups of layer {} one would keep {} of "
            "its {} experts and another {}. Keep as many of each group.",
            place_, key, groups, layer, *least, size, *most);
      Index const groups_taken = stated({"topk_group", "moe_router_group_topk"});
      Index const taken = stated({"num_experts_per_tok", "moe_router_topk"});
      if (*least < 2 || (groups_taken > 0 && groups_taken * *least < taken))
        fail(ErrorKind::usage,
             "[target] keep_experts: {}: layer {} would keep {} experts in each of {} = {} groups, "
             "and a token chooses {} experts out of {} groups by the best two of each. Keep more.",
             place_, layer, *least, key, groups, taken, groups_taken);
    }
  }

  /// The first of these members that is a number; 0 without one.
  Index stated(std::initializer_list<std::string_view> keys) const {
    for (std::string_view const key : keys)
      if (Json const* const found = facts_->find(key);
          found != nullptr && found->integer() != nullptr)
        return *found->integer();
    return 0;
  }

  /// Of items for each layer, those that are left.
  template <class Items>
  Items left_of(Items const& items) const {
    Items left;
    for (Index layer = 0; layer < changes_.layers; ++layer)
      if (!changes_.kept_layers || std::ranges::binary_search(*changes_.kept_layers, layer))
        left.push_back(items[static_cast<std::size_t>(layer)]);
    for (std::size_t i = static_cast<std::size_t>(changes_.layers);
         !changes_.drop_depths && i < items.size(); ++i)
      left.push_back(items[i]);
    return left;
  }

  bool is_by_layer(std::size_t items) const {
    bool const with_depths =
        changes_.depth_layers > 0 &&
        items == static_cast<std::size_t>(changes_.layers + changes_.depth_layers);
    return with_depths ||
           (changes_.kept_layers && items == static_cast<std::size_t>(changes_.layers));
  }

  std::optional<Json> kept_numbers(Json const& list, Index first) const {
    Json::Array left;
    for (Json const& item : *list.items()) {
      if (item.integer() == nullptr) return std::nullopt;
      auto const found = std::ranges::find(*changes_.kept_layers, *item.integer() - first);
      if (found != changes_.kept_layers->end())
        left.emplace_back(static_cast<Index>(found - changes_.kept_layers->begin()) + first);
    }
    return Json(std::move(left));
  }

  /// Members under the numbers of layers ("per_layer_config").
  std::optional<Json> changed_members(Json const& value) const {
    std::vector<Index> numbers(static_cast<std::size_t>(changes_.layers + changes_.depth_layers));
    std::iota(numbers.begin(), numbers.end(), Index{0});
    std::vector<Index> const left = left_of(numbers);
    Json result = Json::object();
    for (auto const& [key, member] : *value.members()) {
      Index layer = -1;
      auto const [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
      if (error != std::errc() || end != key.data() + key.size()) return std::nullopt;
      auto const found = std::ranges::find(left, layer);
      if (found != left.end()) result.set(std::to_string(found - left.begin()), member);
    }
    return result;
  }

  std::optional<Json> changed_list(std::string const& key, Json const& value) const {
    if (changes_.vocab > 0 && key.ends_with("_token_id"))
      for (Json const& item : *value.items())
        if (item.integer() != nullptr && *item.integer() >= changes_.vocab)
          refuse_id(key, *item.integer());
    if (changes_.kept_layers && is_in(layer_numbers, key)) return kept_numbers(value, 0);
    bool const no_layer = is_in(no_layers, key) || key.ends_with("_id") || key.ends_with("_ids");
    if (no_layer || !is_by_layer(value.items()->size())) return std::nullopt;
    return Json(left_of(*value.items()));
  }

  /// One letter for each layer, and "/" before those of multi-token prediction.
  std::optional<Json> changed_pattern(std::string const& key, std::string const& text) const {
    bool const is_pattern = key.ends_with("layer_pattern") || key.ends_with("override_pattern");
    if (!is_pattern || key.starts_with("mtp_")) return std::nullopt;
    std::size_t const slash = std::min(text.find('/'), text.size());
    std::string letters = text.substr(0, slash);
    std::string const depths = changes_.drop_depths ? "" : text.substr(slash);
    if (changes_.kept_layers) {
      std::erase(letters, '|');  // between the stages of another layout
      if (letters.size() != static_cast<std::size_t>(changes_.layers)) return std::nullopt;
      std::string left;
      for (Index const layer : *changes_.kept_layers)
        left.push_back(letters[static_cast<std::size_t>(layer)]);
      letters = std::move(left);
    }
    return Json(letters + depths);
  }

  FactChanges const& changes_;
  std::string const& place_;
  Json const* facts_ = nullptr;  ///< the object whose members are looked at
  bool has_layer_types_ = false;
};

}  // namespace

std::vector<huggingface::ConfigPatch> changed_facts(Json const& facts, std::string_view inner,
                                                    FactChanges const& changes,
                                                    std::string const& place) {
  Changer changer(changes, place);
  changer.run(facts, {});
  std::set<std::string, std::less<>> const places = {"text_config", std::string(inner)};
  for (std::string const& one : places)
    if (!one.empty()) changer.run(fact(facts, one), words_of(one));
  return std::move(changer.patches);
}

}  // namespace reshard
