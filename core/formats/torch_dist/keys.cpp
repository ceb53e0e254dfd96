#include "core/formats/torch_dist/keys.hpp"

#include <algorithm>
#include <optional>

#include "core/formats/megatron/mcore/root.hpp"
#include "core/formats/megatron/mcore/traits.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "core/formats/torch_dist/fsdp_record.hpp"
#include "core/formats/torch_dist/state/flat_keys.hpp"
#include "core/formats/torch_dist/state/flat_state.hpp"
#include "core/formats/torch_dist/state/numbered_states.hpp"

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

/// optimizer.state.exp_avg.decoder.…
std::optional<StateKey> dist_state(std::string_view key) {
  std::string_view const rest = without_chain(key);
  if (!rest.starts_with(dist_states)) return std::nullopt;
  std::size_t const dot = rest.find('.', dist_states.size());
  if (dot == std::string_view::npos) return std::nullopt;
  std::string state(rest.substr(dist_states.size(), dot - dist_states.size()));
  return StateKey{std::move(state), std::string(rest.substr(dot + 1))};
}

/// optimizer.state.module.module.module.decoder.….exp_avg
std::optional<StateKey> fsdp_state(std::string_view key) {
  std::string_view const rest = without_chain(key);
  std::size_t const dot = rest.rfind('.');
  if (!rest.starts_with(fsdp_states) || dot < fsdp_states.size()) return std::nullopt;
  return StateKey{std::string(rest.substr(dot + 1)),
                  std::string(rest.substr(fsdp_states.size(), dot - fsdp_states.size()))};
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

/// The input of a gated delta net, which Megatron-Core stores in parts and ms-swift as one tensor.
constexpr std::string_view whole_projection = ".self_attention.in_proj.weight";

/// The differences between the keys of Megatron's programs.
struct KeyRules {
  std::string_view form;  ///< NameTraits::form of weights that show none
  /// The state of a key; nullopt if it is of none.
  std::optional<StateKey> (*state_of)(std::string_view key);
  bool dist = false;  ///< flat buffers, and pieces of fused weights, are possible
  /// Whether a tensor is no part of the model and no state.
  bool (*left_out)(StoredTensor const& tensor) = [](StoredTensor const&) { return false; };
  bool numbered = false;  ///< state is under the numbers of parameters
};

StoredView sorted(Checkpoint const& checkpoint, KeyRules const& rules, std::string const& prefix) {
  StoredView view;
  std::optional<std::string> const before = before_embedding(checkpoint);
  std::string const cut = prefix.empty() ? found_prefix(checkpoint, before) : prefix;
  if (before && before->starts_with(cut)) view.traits.names.root = before->substr(cut.size());
  auto const& tensors = checkpoint.stored.tensors;
  std::vector<std::size_t> in_buffers;
  std::vector<std::size_t> numbered;
  if (rules.dist) in_buffers = buffers_in(checkpoint.stored);
  add_flat_buffers(checkpoint, in_buffers, view);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::string const& key = tensors.name(t);
    if (std::ranges::binary_search(in_buffers, t)) continue;
    if (is_run_state(key)) continue;  // fsdp_dtensor has tensors where torch_dist has objects
    if (rules.left_out(tensors[t])) continue;
    if (auto state = rules.state_of(key)) {
      view.traits.chained = view.traits.chained || without_chain(key) != key;
      if (checkpoint.chunked.flattened && state->state == "fp32_param")
        state->state = "param";  // its name in fully_reshardable
      bool const behind = !prefix.empty() && state->weight.starts_with(prefix);
      view.table_of(state->state)
          .emplace(behind ? state->weight.substr(prefix.size()) : state->weight, t);
    } else if (without_chain(key).starts_with("optimizer")) {
      view.fixed_state.push_back(key);
      numbered.push_back(t);
    } else if (key.starts_with(cut)) {
      std::string name = key.substr(cut.size());
      megatron::note_traits(view.traits, name, tensors[t]);
      if (rules.dist && name.ends_with(whole_projection)) view.traits.names.trainer = "swift";
      view.weights.emplace(std::move(name), t);
    } else if (prefix.empty()) {
      view.weights.emplace(key, t);  // no entry describes it, and the user gets a message
    } else {
      view.unread.push_back(key);
    }
  }
  if (rules.numbered && add_numbered_states(checkpoint, numbered, view))
    view.fixed_state.clear();
  else if (rules.numbered)
    view.state_fault =
        "its optimizer state is under the numbers of parameters (--ckpt-format torch_dcp), where "
        "only that of Adam with master weights and one step for each group is read. Train with Adam "
        "of Transformer Engine or Apex, which counts steps so";
  view.traits.parts = rules.dist;
  if (view.traits.form.empty()) view.traits.form = rules.form;
  return view;
}

}  // namespace

std::string state_prefix(std::string_view state) {
  return fmt::format("{}{}.", dist_states, state);
}

StoredView torch_dist_keys(Checkpoint const& checkpoint, std::string const& prefix) {
  return sorted(checkpoint, {.form = "dist", .state_of = dist_state, .dist = true}, prefix);
}

StoredView fsdp_dtensor_keys(Checkpoint const& checkpoint, std::string const& prefix) {
  auto const is_step = [](StoredTensor const& tensor) {
    return is_step_key(tensor.name) && tensor.shape.empty();
  };
  return sorted(checkpoint, {.form = "fsdp", .state_of = fsdp_state, .left_out = is_step}, prefix);
}

StoredView torch_dcp_keys(Checkpoint const& checkpoint, std::string const& prefix) {
  auto const none = [](std::string_view) -> std::optional<StateKey> { return std::nullopt; };
  return sorted(checkpoint,
                {.form = "fsdp", .state_of = none, .left_out = is_empty_state, .numbered = true},
                prefix);
}

}  // namespace reshard::dcp
