#include "core/formats/dcp/keys.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "core/formats/dcp/flat_keys.hpp"
#include "core/formats/dcp/flat_state.hpp"
#include "core/formats/dcp/fsdp_record.hpp"
#include "core/formats/dcp/named_states.hpp"
#include "core/formats/dcp/numbered_states.hpp"
#include "core/formats/megatron/root.hpp"
#include "core/formats/megatron/traits.hpp"
#include "core/formats/state_inventory.hpp"
#include "core/plan/state_checks.hpp"

namespace reshard::dcp {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "chained_0." of several optimizers in one.
std::string_view without_chain(std::string_view key) {
  constexpr std::string_view chain = "chained_";
  if (!key.starts_with(chain)) return key;
  std::size_t at = chain.size();
  while (at < key.size() && is_digit(key[at])) ++at;
  return at > chain.size() && at < key.size() && key[at] == '.' ? key.substr(at + 1) : key;
}

/// A key of optimizer state: the kind of state, and its weight.
struct StateKey {
  std::string state;
  std::string weight;
};

constexpr std::string_view dist_states = "optimizer.state.";
constexpr std::string_view fsdp_states = "optimizer.state.module.module.module.";

/// optimizer.state.exp_avg.decoder.… of torch_dist;
/// optimizer.state.module.module.module.decoder.….exp_avg of Megatron-FSDP.
std::optional<StateKey> state_key(std::string_view key, Flavour flavour) {
  std::string_view const rest = without_chain(key);
  if (flavour == Flavour::fsdp_dtensor) {
    std::size_t const dot = rest.rfind('.');
    if (!rest.starts_with(fsdp_states) || dot < fsdp_states.size()) return std::nullopt;
    return StateKey{std::string(rest.substr(dot + 1)),
                    std::string(rest.substr(fsdp_states.size(), dot - fsdp_states.size()))};
  }
  if (flavour != Flavour::torch_dist || !rest.starts_with(dist_states)) return std::nullopt;
  std::size_t const dot = rest.find('.', dist_states.size());
  if (dot == std::string_view::npos) return std::nullopt;
  std::string state(rest.substr(dist_states.size(), dot - dist_states.size()));
  return StateKey{std::move(state), std::string(rest.substr(dot + 1))};
}

constexpr std::string_view wrappers[] = {"model.module.module.", "model.module.", "module.",
                                         "model.", ""};

/// The prefix of the key of the word embedding; nullopt if there is none.
std::optional<std::string> before_embedding(Checkpoint const& checkpoint) {
  for (StoredTensor const& tensor : checkpoint.stored.tensors)
    if (!without_chain(tensor.name).starts_with("optimizer"))
      if (auto before = megatron::root_in(tensor.name)) return before;
  return std::nullopt;
}

std::string found_prefix(Checkpoint const& checkpoint, std::optional<std::string> const& before) {
  for (std::string_view const prefix : wrappers) {
    if (before && before->starts_with(prefix)) return std::string(prefix);
    for (StoredTensor const& tensor : checkpoint.stored.tensors)
      if (!before && tensor.name.starts_with(prefix) &&
          std::string_view(tensor.name).substr(prefix.size()).starts_with("decoder."))
        return std::string(prefix);
  }
  return "";
}

/// The table of a slot, which the view has from now on.
StoredView::Table& table_of(StoredView& view, std::string_view slot) {
  auto const at =
      static_cast<std::size_t>(std::ranges::find(view.states, slot) - view.states.begin());
  if (at == view.states.size()) view.states.emplace_back(slot);
  view.state_tables.resize(view.states.size());
  return view.state_tables[at];
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// Whether a tensor is the state that Transformer Engine saves for a module without FP8.
bool is_empty_state(StoredTensor const& tensor) {
  return tensor.name.ends_with("._extra_state") && std::ranges::count(tensor.shape, Index{0}) > 0;
}

/// The vectors of flat buffers, ascending.
std::vector<std::size_t> buffers_in(StoredTable const& stored) {
  std::vector<std::size_t> found;
  for (std::size_t t = 0; t < stored.tensors.size(); ++t)
    if (parse_bucket_key(stored.tensors.name(t).text())) found.push_back(t);
  return found;
}

/// "optimizer_rank_3.pt".
bool is_of_rank(std::string_view file, std::string_view kind) {
  if (!take(file, kind) || file.empty() || !is_digit(file.front())) return false;
  while (!file.empty() && is_digit(file.front())) file.remove_prefix(1);
  return file == ".pt";
}

StoredView plain_keys(Checkpoint const& checkpoint, std::string const& prefix) {
  StoredView view;
  auto const& tensors = checkpoint.stored.tensors;
  NamedStates const found = named_states(checkpoint.stored, prefix);
  std::vector<bool> state(tensors.size(), false);
  for (NamedState const& one : found.states) {
    state[one.tensor] = true;
    table_of(view, is_master_slot(one.slot) ? "param" : one.slot)
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

/// The input of a gated delta net, which Megatron-Core stores in parts and ms-swift as one tensor.
constexpr std::string_view whole_projection = ".self_attention.in_proj.weight";

}  // namespace

std::string state_prefix(std::string_view state) {
  return fmt::format("{}{}.", dist_states, state);
}

StoredView sorted_keys(Checkpoint const& checkpoint, Flavour flavour, std::string const& prefix) {
  if (flavour == Flavour::plain) return plain_keys(checkpoint, prefix);
  StoredView view;
  std::optional<std::string> const before = before_embedding(checkpoint);
  std::string const cut = prefix.empty() ? found_prefix(checkpoint, before) : prefix;
  if (before && before->starts_with(cut)) view.traits.names.root = before->substr(cut.size());
  auto const& tensors = checkpoint.stored.tensors;
  std::vector<std::size_t> in_buffers;
  std::vector<std::size_t> numbered;
  if (flavour == Flavour::torch_dist) in_buffers = buffers_in(checkpoint.stored);
  add_flat_buffers(checkpoint, in_buffers, view);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::string const& key = tensors.name(t);
    if (std::ranges::binary_search(in_buffers, t)) continue;
    if (flavour == Flavour::fsdp_dtensor && is_step_key(key) && tensors.shape(t).empty()) continue;
    if (is_run_state(key)) continue;  // fsdp_dtensor has tensors where torch_dist has objects
    if (flavour == Flavour::torch_dcp && is_empty_state(tensors[t])) continue;
    if (auto state = state_key(key, flavour)) {
      view.traits.chained = view.traits.chained || without_chain(key) != key;
      if (checkpoint.chunked.flattened && state->state == "fp32_param")
        state->state = "param";  // its name in fully_reshardable
      bool const behind = !prefix.empty() && state->weight.starts_with(prefix);
      table_of(view, state->state)
          .emplace(behind ? state->weight.substr(prefix.size()) : state->weight, t);
    } else if (without_chain(key).starts_with("optimizer")) {
      view.fixed_state.push_back(key);
      numbered.push_back(t);
    } else if (key.starts_with(cut)) {
      std::string name = key.substr(cut.size());
      megatron::note_traits(view.traits, name, tensors[t]);
      if (flavour == Flavour::torch_dist && name.ends_with(whole_projection))
        view.traits.names.trainer = "swift";
      view.weights.emplace(std::move(name), t);
    } else if (prefix.empty()) {
      view.weights.emplace(key, t);  // no entry describes it, and the user gets a message
    } else {
      view.unread.push_back(key);
    }
  }
  if (flavour == Flavour::torch_dcp && add_numbered_states(checkpoint, numbered, view))
    view.fixed_state.clear();
  else if (flavour == Flavour::torch_dcp)
    view.state_fault =
        "its optimizer state is under the numbers of parameters (--ckpt-format torch_dcp), where "
        "only that of Adam with master weights and one step for each group is read. Train with Adam "
        "of Transformer Engine or Apex, which counts steps so";
  bool const dist = flavour == Flavour::torch_dist;
  view.traits.parts = dist;
  if (view.traits.form.empty()) view.traits.form = dist ? "dist" : "fsdp";
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
