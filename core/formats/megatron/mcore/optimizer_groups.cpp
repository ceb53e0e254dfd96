#include "core/formats/megatron/mcore/optimizer_groups.hpp"

#include <algorithm>
#include <array>

#include "core/base/error.hpp"

namespace reshard {

pickle::NodeId groups_of(pickle::Document const& document, pickle::NodeId settings) {
  if (pickle::NodeId const inner = document.find(settings, "optimizer"); inner != pickle::no_node)
    settings = inner;
  pickle::NodeId const groups = document.find(settings, "param_groups");
  return groups != pickle::no_node && document.at(groups).kind == pickle::Kind::list
             ? groups
             : pickle::no_node;
}

namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::NodeId;

constexpr std::string_view expert_key = "is_expert_parallel";
/// The settings by which Megatron identifies a group, in addition to `expert_key`.
constexpr std::array<std::string_view, 3> identity = {"wd_mult", "lr_mult", "is_decoupled_lr"};

/// The value under an integer key of a dict.
NodeId numbered(Document const& document, NodeId dict, std::int64_t number) {
  if (dict == no_node || document.at(dict).kind != Kind::dict) return no_node;
  auto const& items = document.at(dict).items;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (document.at(items[i]).kind == Kind::integer && document.at(items[i]).integer == number)
      return items[i + 1];
  return no_node;
}

void mark_groups(Document& document, NodeId settings, bool expert) {
  NodeId const groups = groups_of(document, settings);
  if (groups == no_node) return;
  for (NodeId const group : std::vector<NodeId>(document.at(groups).items))
    document.set(group, expert_key, document.add_bool(expert));
}

bool is_zero(Document const& document, NodeId value) {
  if (value == no_node) return true;
  auto const& node = document.at(value);
  return (node.kind == Kind::real && node.real == 0) ||
         (node.kind == Kind::integer && node.integer == 0) ||
         (node.kind == Kind::boolean && !node.boolean);
}

/// Keeps only the groups of expert parameters: not those of word embeddings, which have their own
/// learning rate, and perhaps not those of biases.
void keep_expert_groups(Document& document, NodeId settings, bool expert_biases) {
  NodeId const groups = groups_of(document, settings);
  if (groups == no_node) return;
  std::erase_if(document.at(groups).items, [&](NodeId group) {
    NodeId const decay = document.find(group, "wd_mult");
    return !is_zero(document, document.find(group, "is_decoupled_lr")) ||
           (!expert_biases && decay != no_node && is_zero(document, decay));
  });
}

bool same_value(Document const& document, NodeId a, NodeId b) {
  if (a == no_node || b == no_node) return a == b;
  auto const& x = document.at(a);
  auto const& y = document.at(b);
  return x.kind == y.kind && x.boolean == y.boolean && x.integer == y.integer && x.real == y.real;
}

bool same_group(Document const& document, NodeId a, NodeId b) {
  return std::all_of(identity.begin(), identity.end(), [&](std::string_view key) {
    return same_value(document, document.find(a, key), document.find(b, key));
  });
}

void check_step(Document const& document, NodeId known, NodeId step, std::string const& place) {
  auto const& x = document.at(known);
  auto const& y = document.at(step);
  if (x.kind != Kind::integer || y.kind != Kind::integer || x.integer == y.integer) return;
  fail(ErrorKind::source,
       "{}: the optimizer is at step {} here and at {} in other ranks. The files are of two saves: "
       "restore those of one.",
       place, y.integer, x.integer);
}

/// Checks that the values set by a scheduler are the same on every rank.
void check_values(Document const& document, NodeId known, NodeId group, std::string const& place) {
  for (std::string_view const key : {"lr", "weight_decay"}) {
    NodeId const a = document.find(known, key);
    NodeId const b = document.find(group, key);
    if (a == no_node || b == no_node || document.at(a).kind != Kind::real ||
        document.at(b).kind != Kind::real || document.at(a).real == document.at(b).real)
      continue;
    fail(ErrorKind::source,
         "{}: '{}' of a parameter group is {} here and {} in other ranks. The files are of two "
         "saves: restore those of one.",
         place, key, document.at(b).real, document.at(a).real);
  }
}

bool is_expert_group(Document const& document, NodeId group) {
  return !is_zero(document, document.find(group, expert_key));
}

std::vector<NodeId> items_of(Document const& document, NodeId list) {
  return list == no_node ? std::vector<NodeId>() : document.at(list).items;
}

/// Whether any optimizer of the chain has weights of experts.
bool has_expert_groups(Document const& common) {
  for (Index chain = 0; settings_of_chain(common, chain) != no_node; ++chain)
    for (NodeId const group : items_of(common, groups_of(common, settings_of_chain(common, chain))))
      if (is_expert_group(common, group)) return true;
  return false;
}

void join_groups(Document& document, NodeId kept, NodeId experts) {
  mark_groups(document, experts, false);
  add_lacking_groups(document, kept, experts, "common state");
}

}  // namespace

bool has_several_optimizers(Document const& common) {
  return numbered(common, common.find(common.root, "optimizer"), 0) != no_node;
}

NodeId settings_of_chain(Document const& common, Index chain) {
  NodeId const all = common.find(common.root, "optimizer");
  NodeId const one = numbered(common, all, chain);
  return one != no_node || has_several_optimizers(common) || chain != 0 ? one : all;
}

bool is_chain_of_kinds(Document const& common) {
  if (!has_several_optimizers(common)) return false;
  if (settings_of_chain(common, 2) != no_node) return true;
  for (Index chain : {Index{0}, Index{1}})
    for (NodeId const group : items_of(common, groups_of(common, settings_of_chain(common, chain))))
      if (is_expert_group(common, group) != (chain == 1)) return true;
  return false;
}

void add_lacking_groups(Document& document, NodeId settings, NodeId others,
                        std::string const& place) {
  NodeId const groups = groups_of(document, settings);
  NodeId const more = groups_of(document, others);
  if (groups == no_node || more == no_node) return;
  for (NodeId const group : std::vector<NodeId>(document.at(more).items)) {
    auto const& known = document.at(groups).items;
    auto const same = std::ranges::find_if(
        known, [&](NodeId other) { return same_group(document, group, other); });
    if (same == known.end()) {
      document.at(groups).items.push_back(group);
      continue;
    }
    check_values(document, *same, group, place);
    NodeId const step = document.find(group, "step");
    NodeId const known_step = document.find(*same, "step");
    if (step == no_node) continue;
    if (known_step == no_node)
      document.set(*same, "step", step);
    else
      check_step(document, known_step, step, place);
  }
}

void split_optimizers(Document& document, NodeId root, Document const& common, bool several,
                      bool expert_biases) {
  NodeId const settings = document.find(root, "optimizer");
  if (settings == no_node) return;
  if (is_chain_of_kinds(common)) {
    if (has_expert_groups(common) == several) return;
    fail(ErrorKind::source,
         "common state: weights are shared among optimizers of several kinds, such as Muon and "
         "Adam. This version cannot {}: choose a target.layout.ep {}, or set source.optimizer = "
         "\"drop\".",
         several ? "split off those of experts" : "join those of experts with the others",
         several ? "of 1, as in the source" : "above 1, as in the source");
  }
  if (has_several_optimizers(common) == several) return;
  if (!several) {
    NodeId const kept = numbered(document, settings, 0);
    if (NodeId const experts = numbered(document, settings, 1); experts != no_node)
      join_groups(document, kept, experts);
    return document.set(root, "optimizer", kept);
  }
  NodeId const experts = document.add_copy(common, common.find(common.root, "optimizer"));
  keep_expert_groups(document, experts, expert_biases);
  mark_groups(document, experts, true);
  NodeId const chain = document.add_dict();
  NodeId const zero = document.add_int(0);
  NodeId const one = document.add_int(1);
  document.at(chain).items = {zero, settings, one, experts};
  document.set(root, "optimizer", chain);
}

}  // namespace reshard
