#include "core/formats/run/torch_optimizer.hpp"

#include <cmath>

#include "core/base/error.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/torch/pickle/carried_calls.hpp"

namespace reshard {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::Node;
using pickle::NodeId;

constexpr std::string_view drop_hint =
    "Set source.optimizer = \"drop\" to continue without the optimizer";

double number(Document const& document, NodeId id, double absent) {
  if (id == no_node) return absent;
  Node const& node = document.at(id);
  if (node.kind == Kind::real) return node.real;
  return node.kind == Kind::integer ? static_cast<double>(node.integer) : absent;
}

/// Makes Megatron's groups of a run's own.
class MegatronGroups {
 public:
  MegatronGroups(TorchOptimizer const& optimizer, std::string const& place)
      : optimizer_(optimizer), place_(place), from_(settings_of(optimizer)) {
    check_plain(from_, place);
  }

  Document make() {
    std::vector<NodeId> const groups = from_.at(from_.root).items;
    check_alike(groups);
    if (!optimizer_.steps || *optimizer_.steps != std::floor(*optimizer_.steps))
      fail(ErrorKind::source, "{}: the optimizer does not state its step. {}.", place_, drop_hint);
    NodeId const decaying = heaviest(groups);
    to_.root = to_.add_dict();
    NodeId const outer = to_.add_dict();
    NodeId const inner = to_.add_dict();
    to_.set(inner, "param_groups", to_.add_list({group(decaying, 1), group(decaying, 0)}));
    to_.set(outer, "optimizer", inner);
    to_.set(outer, "param_state_sharding_type", to_.add_string("fully_reshardable"));
    to_.set(to_.root, "optimizer", outer);
    return std::move(to_);
  }

 private:
  double value(NodeId group, std::string_view key, double absent) const {
    return number(from_, from_.find(group, key), absent);
  }

  std::pair<double, double> betas(NodeId group) const {
    NodeId const id = from_.find(group, "betas");
    if (id == no_node || from_.at(id).items.size() != 2)
      fail(ErrorKind::source, "{}: a group of the optimizer has no 'betas': it is not Adam. {}.",
           place_, drop_hint);
    auto const& items = from_.at(id).items;
    return {number(from_, items[0], 0), number(from_, items[1], 0)};
  }

  /// Megatron multiplies one weight decay by 0 or 1, and has one learning rate.
  void check_alike(std::vector<NodeId> const& groups) const {
    double decay = 0;
    for (NodeId const group : groups) {
      NodeId const first = groups.front();
      for (std::string_view const key : {"lr", "eps"})
        if (value(group, key, 0) != value(first, key, 0))
          fail(ErrorKind::source,
               "{}: '{}' is {} in one group of the optimizer and {} in another. Megatron has "
               "one for all groups. {}.",
               place_, key, value(first, key, 0), value(group, key, 0), drop_hint);
      check_kind(group);
      if (betas(group) != betas(first))
        fail(ErrorKind::source, "{}: groups of the optimizer have different 'betas'. {}.", place_,
             drop_hint);
      double const own = value(group, "weight_decay", 0);
      if (own != 0 && decay != 0 && own != decay)
        fail(ErrorKind::source,
             "{}: the weight decay is {} in one group of the optimizer and {} in another. "
             "Megatron has one for all groups that decay. {}.",
             place_, decay, own, drop_hint);
      if (own != 0) decay = own;
    }
  }

  /// Checks for options of torch's Adam that Megatron's lacks.
  void check_kind(NodeId group) const {
    for (std::string_view const key : {"amsgrad", "maximize"})
      if (NodeId const set = from_.find(group, key);
          set != no_node && from_.at(set).kind == Kind::boolean && from_.at(set).boolean)
        fail(ErrorKind::source,
             "{}: '{}' is true in a group of the optimizer, which Megatron's Adam does not have. "
             "{}.",
             place_, key, drop_hint);
  }

  NodeId heaviest(std::vector<NodeId> const& groups) const {
    NodeId found = groups.front();
    for (NodeId const group : groups)
      if (value(group, "weight_decay", 0) > value(found, "weight_decay", 0)) found = group;
    return found;
  }

  NodeId group(NodeId of, double decay) {
    double const lr = value(of, "lr", 0);
    auto const [beta1, beta2] = betas(of);
    NodeId const made = to_.add_dict();
    auto const set = [&](std::string_view key, NodeId node) { to_.set(made, key, node); };
    set("wd_mult", to_.add_real(decay));
    set("lr_mult", to_.add_real(1));
    set("is_expert_parallel", to_.add_bool(false));
    set("is_decoupled_lr", to_.add_bool(false));
    set("max_lr", to_.add_real(value(of, "initial_lr", lr)));
    set("min_lr", to_.add_real(0));
    set("lr", to_.add_real(lr));
    set("bias_correction", to_.add_bool(true));
    set("betas", to_.add_tuple({to_.add_real(beta1), to_.add_real(beta2)}));
    set("eps", to_.add_real(value(of, "eps", 1e-8)));
    set("weight_decay", to_.add_real(decay * value(of, "weight_decay", 0)));
    set("step", to_.add_int(whole_steps(optimizer_)));
    return made;
  }

  TorchOptimizer const& optimizer_;
  std::string const& place_;
  Document from_;
  Document to_;
};

}  // namespace

Document settings_of(TorchOptimizer const& optimizer) {
  RESHARD_EXPECT(!optimizer.settings.empty());
  return pickle::parse(std::as_bytes(std::span(optimizer.settings)), "settings of an optimizer");
}

std::int64_t whole_steps(TorchOptimizer const& optimizer) {
  return static_cast<std::int64_t>(optimizer.steps.value_or(0));
}

void check_plain(Document const& settings, std::string const& place) {
  if (auto const found = pickle::not_to_carry(settings, settings.root))
    fail(ErrorKind::source,
         "{}: the settings of the optimizer hold '{}', which is not a plain value. {}.", place,
         found.name, drop_hint);
}

std::vector<std::pair<std::string, std::string>> settings_by_parameter(
    TorchOptimizer const& optimizer, std::string const& place) {
  std::vector<std::pair<std::string, std::string>> result;
  if (optimizer.settings.empty()) return result;
  Document const settings = settings_of(optimizer);
  check_plain(settings, place);
  auto const& groups = settings.at(settings.root).items;
  for (std::size_t g = 0; g < groups.size() && g < optimizer.members.size(); ++g)
    for (auto const& [field, node] : settings.members(groups[g])) {
      if (field == "params") continue;
      Document single;
      single.root = single.add_copy(settings, node);
      std::string const bytes = dcp::torch_file_bytes(single, "archive");
      for (std::string const& name : optimizer.members[g])
        result.emplace_back(fmt::format("optimizer.param_groups.{}.{}", name, field), bytes);
    }
  return result;
}

Document megatron_settings(TorchOptimizer const& optimizer, std::string const& place) {
  if (!optimizer.fault.empty())
    fail(ErrorKind::source, "{}: {} {}.", place, optimizer.fault, drop_hint);
  if (optimizer.settings.empty())
    fail(ErrorKind::source, "{}: holds no param_groups, which a Megatron run needs. {}.", place,
         drop_hint);
  return MegatronGroups(optimizer, place).make();
}

}  // namespace reshard
