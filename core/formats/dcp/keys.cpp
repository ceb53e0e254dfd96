#include "core/formats/dcp/keys.hpp"

#include <algorithm>
#include <set>

#include "core/formats/dcp/named_states.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "core/plan/equal/state_checks.hpp"

namespace reshard::dcp {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// "optimizer_rank_3.pt".
bool is_of_rank(std::string_view file, std::string_view kind) {
  if (!take(file, kind) || file.empty() || !is_digit(file.front())) return false;
  while (!file.empty() && is_digit(file.front())) file.remove_prefix(1);
  return file == ".pt";
}

}  // namespace

StoredView sorted_keys(Checkpoint const& checkpoint, std::string const& prefix) {
  StoredView view;
  auto const& tensors = checkpoint.stored.tensors;
  NamedStates const found = named_states(checkpoint.stored, prefix);
  std::vector<bool> state(tensors.size(), false);
  for (NamedState const& one : found.states) {
    state[one.tensor] = true;
    view.table_of(is_master_slot(one.slot) ? "param" : one.slot)
        .emplace(one.weight.substr(prefix.size()), one.tensor);
  }
  for (NamedState const& one : found.steps) state[one.tensor] = true;
  for (std::size_t const tensor : found.settings) state[tensor] = true;
  for (std::size_t const tensor : found.strays) {
    state[tensor] = true;
    view.fixed_state.push_back(tensors.name(tensor));
  }
  view.state_fault = found.fault;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (state[t]) continue;
    std::string const& key = tensors.name(t);
    if (key.starts_with(prefix))
      view.weights.emplace(key.substr(prefix.size()), t);
    else
      view.unread.push_back(key);
  }
  return view;
}

bool is_rank_optimizer(std::string_view file) { return is_of_rank(file, "optimizer_rank_"); }
bool is_rank_rng(std::string_view file) { return is_of_rank(file, "rng_state_rank_"); }

StateInventory named_inventory(Checkpoint const& checkpoint, StoredView const& view) {
  StateInventory inventory = checkpoint.state.inventory;
  inventory.slots = view.states;
  if (!view.states.empty()) inventory.optimizer = {StateForm::by_weight, view.states.front()};
  if (!view.fixed_state.empty())
    inventory.optimizer = {StateForm::by_layout, view.fixed_state.front(), view.state_fault};
  std::set<std::string_view> const places = named_states(checkpoint.stored, "").places;
  for (StoredObject const& object : checkpoint.stored.objects)
    if (!is_named_setting(object.name, places)) inventory.others.push_back(object.name);
  return inventory;
}

}  // namespace reshard::dcp
