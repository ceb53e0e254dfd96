#include "core/formats/fsdp_ranks/named_states.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include <fmt/ranges.h>

#include "core/base/error.hpp"
#include "core/base/tables/counted.hpp"

namespace reshard::fsdp_ranks {
namespace {

using Kind = TensorForm::Kind;

/// The largest table of keys and weights, in cells.
constexpr std::size_t most_cells = std::size_t{1} << 26;
constexpr std::string_view way_out =
    "Save with names (torch.optim.AdamW(model.named_parameters(), …), torch 2.6 and later), or "
    "with get_optimizer_state_dict and torch.distributed.checkpoint";

class Namer {
 public:
  Namer(RankFiles const& optimizer, std::span<RankTensor const> states, RankFiles const& model,
        std::span<RankTensor const> weights)
      : form_(optimizer.form(0)), states_(states), model_(model), weights_(weights) {}

  StateNames run() {
    if (named_by_groups() || named_by_keys()) {
      check_names();
      return std::move(result_);
    }
    name_in_order();
    return std::move(result_);
  }

 private:
  void fault(std::string sentence) {
    result_.name_of.clear();
    result_.fault = std::move(sentence);
  }

  bool named_by_groups() {
    std::map<std::string, std::string> names;
    for (std::size_t g = 0; g < form_.members.size(); ++g) {
      if (form_.members[g].size() != form_.names[g].size()) return false;
      for (std::size_t i = 0; i < form_.members[g].size(); ++i)
        names[form_.members[g][i]] = form_.names[g][i];
    }
    if (names.empty()) return false;
    result_.name_of = std::move(names);
    return true;
  }

  bool named_by_keys() {
    for (auto const& group : form_.members)
      for (std::string const& key : group)
        if (key.find_first_not_of("0123456789") == std::string::npos) return false;
    for (auto const& group : form_.members)
      for (std::string const& key : group) result_.name_of[key] = key;
    return !result_.name_of.empty();
  }

  /// In the order of the state dict, without second names.
  std::vector<RankTensor const*> parameters() const {
    std::vector<RankTensor const*> result;
    std::set<std::pair<std::uint64_t, std::size_t>> places;
    for (RankTensor const& one : weights_)
      if (first_name(one, places)) result.push_back(&one);
    return result;
  }

  /// Tied weights are one tensor under two names, on every rank that has any of it.
  bool first_name(RankTensor const& tensor,
                  std::set<std::pair<std::uint64_t, std::size_t>>& places) const {
    for (auto const& [rank, t] : tensor.holders)
      for (HeldPart const& part : model_.ranks[rank].parts[t])
        if (part.tensor.size_bytes > 0)
          return places.emplace(part.tensor.offset_bytes, rank).second;
    return true;
  }

  void name_in_order() {
    std::vector<std::string> keys;
    for (auto const& group : form_.members) keys.insert(keys.end(), group.begin(), group.end());
    if (form_.members.size() != 1)
      return fault(
          fmt::format("its parameters are under numbers, in {} groups, and no file tells "
                      "which weights are in which. {}",
                      form_.members.size(), way_out));
    std::vector<RankTensor const*> const all = parameters();
    std::vector<RankTensor const*> cut;
    for (RankTensor const* one : all)
      if (one->form->kind != Kind::plain) cut.push_back(one);
    if (all.size() == keys.size())
      take(keys, all);
    else if (cut.size() == keys.size())
      take(keys, cut);
    else if (auto const found = only_order(keys, all))
      take(keys, *found);
    else
      return fault(fmt::format("it has {} under numbers, and the model {}. {}",
                               counted(keys.size(), "parameter"), counted(all.size(), "weight"),
                               way_out));
    check_names();
    if (!result_.fault.empty()) fault(fmt::format("{}. {}", result_.fault, way_out));
  }

  void take(std::vector<std::string> const& keys, std::vector<RankTensor const*> const& weights) {
    for (std::size_t i = 0; i < keys.size(); ++i) result_.name_of[keys[i]] = weights[i]->form->name;
  }

  /// Plain tensors are buffers, or parameters that FSDP ignores: where only one choice of them
  /// gives each key a weight of the class and shape of its states, those weights.
  std::optional<std::vector<RankTensor const*>> only_order(
      std::vector<std::string> const& keys, std::vector<RankTensor const*> const& all) const {
    std::size_t const width = all.size() + 1;
    if (keys.size() >= all.size() || keys.size() * width > most_cells) return std::nullopt;
    std::unordered_map<std::string, RankTensor const*> state_of;
    for (RankTensor const& state : states_) {
      auto const [key, slot] = parts_of_state(state.form->name);
      if (!state.form->shape.empty()) state_of.emplace(key, &state);
    }
    auto const fits = [&](std::size_t k, std::size_t w) {
      auto const state = state_of.find(keys[k]);
      return state == state_of.end() || (state->second->form->shape == all[w]->form->shape &&
                                         state->second->form->kind == all[w]->form->kind);
    };
    // How many ways there are to give keys from k on weights from w on: 0, 1, or 2 for more.
    std::vector<std::uint8_t> ways((keys.size() + 1) * width, 0);
    auto const at = [&](std::size_t k, std::size_t w) -> std::uint8_t& {
      return ways[k * width + w];
    };
    at(keys.size(), all.size()) = 1;
    for (std::size_t w = all.size(); w-- > 0;)
      for (std::size_t k = 0; k <= keys.size(); ++k) {
        bool const optional = all[w]->form->kind == Kind::plain;
        int const count =
            (optional ? at(k, w + 1) : 0) + (k < keys.size() && fits(k, w) ? at(k + 1, w + 1) : 0);
        at(k, w) = static_cast<std::uint8_t>(std::min(count, 2));
      }
    if (at(0, 0) != 1) return std::nullopt;
    std::vector<RankTensor const*> result;
    for (std::size_t w = 0, k = 0; k < keys.size(); ++w)
      if (fits(k, w) && at(k + 1, w + 1) == 1) {
        result.push_back(all[w]);
        ++k;
      }
    return result;
  }

  /// States have the shapes of their weights.
  void check_names() {
    std::unordered_map<std::string_view, RankTensor const*> weights;
    for (RankTensor const& one : weights_) weights.emplace(one.form->name, &one);
    for (RankTensor const& state : states_) {
      auto const [key, slot] = parts_of_state(state.form->name);
      auto const name = result_.name_of.find(key);
      if (name == result_.name_of.end())
        return fault(
            fmt::format("'{}' is state of a parameter that no group has", state.form->name));
      auto const weight = weights.find(name->second);
      if (weight == weights.end())
        return fault(fmt::format("'{}' is state of '{}', which the model does not have",
                                 state.form->name, name->second));
      if (slot == "step" || state.form->shape.empty()) continue;
      if (state.form->shape != weight->second->form->shape)
        return fault(fmt::format("'{}' is ({}), and '{}', whose state it is by its place, is ({})",
                                 state.form->name, fmt::join(state.form->shape, ", "), name->second,
                                 fmt::join(weight->second->form->shape, ", ")));
    }
  }

  FileForm const& form_;
  std::span<RankTensor const> states_;
  RankFiles const& model_;
  std::span<RankTensor const> weights_;
  StateNames result_;
};

}  // namespace

StateNames names_of_states(RankFiles const& optimizer, std::span<RankTensor const> states,
                           RankFiles const& model, std::span<RankTensor const> weights) {
  return Namer(optimizer, states, model, weights).run();
}

std::pair<std::string, std::string> parts_of_state(std::string const& name) {
  std::size_t const dot = name.rfind('.');
  RESHARD_EXPECT(dot != std::string::npos);
  return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace reshard::fsdp_ranks
