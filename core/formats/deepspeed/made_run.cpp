#include "core/formats/deepspeed/made_run.hpp"

#include <array>
#include <memory>
#include <set>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/deepspeed/rank_header.hpp"
#include "core/formats/megatron/mcore/optimizer_groups.hpp"

namespace reshard::deepspeed {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::Node;
using pickle::NodeId;

constexpr std::array<std::string_view, 4> kept_settings = {"lr", "betas", "eps", "weight_decay"};

std::vector<UniversalTensor const*> masters(std::vector<UniversalTensor> const& tensors) {
  std::vector<UniversalTensor const*> result;
  for (UniversalTensor const& one : tensors)
    if (one.slot == master_word) result.push_back(&one);
  return result;
}

/// A group for each parameter, all with these settings.
void set_groups(UniversalRun& run, std::vector<UniversalTensor> const& tensors, NodeId group) {
  run.groups.root = run.groups.add_list(std::vector<NodeId>(masters(tensors).size(), group));
}

/// A number, or a pair of them; empty for another value.
std::vector<double> numbers(Document const& document, NodeId id) {
  std::vector<double> result;
  if (auto const one = document.number(id)) return {*one};
  if (id == no_node || (document.at(id).kind != Kind::tuple && document.at(id).kind != Kind::list))
    return {};
  for (NodeId const item : document.at(id).items) {
    auto const one = document.number(item);
    if (!one) return {};
    result.push_back(*one);
  }
  return result;
}

/// A group's setting times a factor of Megatron's; the setting itself for factor one, or none.
std::vector<double> multiple(Document const& document, NodeId group, std::string_view factor,
                             std::string_view key) {
  std::vector<double> values = numbers(document, document.find(group, key));
  double const by = document.number(document.find(group, factor)).value_or(1);
  for (double& value : values) value *= by;
  return values;
}

/// Sets groups with what `from` have in common.
void set_common(UniversalRun& run, Document const& document, std::vector<NodeId> const& from,
                std::vector<UniversalTensor> const& tensors, std::vector<std::string>& warnings) {
  NodeId const group = run.groups.add_dict();
  std::vector<std::string> differing;
  for (std::string_view const key : kept_settings) {
    std::set<std::vector<double>> values;
    for (NodeId const one : from) {
      values.insert(numbers(document, document.find(one, key)));
      // Before the first step of its scheduler a group of Megatron's has not been multiplied.
      if (key == "weight_decay") values.insert(multiple(document, one, "wd_mult", key));
      if (key == "lr") values.insert(multiple(document, one, "lr_mult", key));
    }
    if (values.size() > 1)
      differing.emplace_back(key);
    else if (!values.begin()->empty())
      run.groups.set(group, key, run.groups.add_copy(document, document.find(from.front(), key)));
  }
  set_groups(run, tensors, group);
  if (!differing.empty())
    warnings.push_back(fmt::format(
        "parameter groups of the source differ in {}, and DeepSpeed knows groups by their order: "
        "the training program's own settings of these are used",
        listed(differing)));
}

[[noreturn]] void refuse_without_steps(std::string const& place) {
  fail(ErrorKind::source,
       "{}: the optimizer does not state its step, which DeepSpeed's universal checkpoints need. "
       "Set source.optimizer = \"drop\" to continue without the optimizer.",
       place);
}

}  // namespace

void set_fresh(UniversalRun& run, std::vector<UniversalTensor> const& tensors) {
  run.weights_alone = true;
  run.tensor_steps = true;
  run.steps = 0;
  set_groups(run, tensors, run.groups.add_dict());
}

void refuse_without_settings(std::string const& place) {
  fail(ErrorKind::source,
       "{}: holds optimizer state and no settings of an optimizer, which DeepSpeed's universal "
       "checkpoints need. Set source.optimizer = \"drop\" to continue without the optimizer.",
       place);
}

void set_common_settings(UniversalRun& run, TorchOptimizer const& optimizer,
                         std::vector<UniversalTensor> const& tensors, std::string const& place,
                         std::vector<std::string>& warnings) {
  if (optimizer.settings.empty()) refuse_without_settings(place);
  if (!optimizer.steps) refuse_without_steps(place);
  run.steps = optimizer.steps;
  Document const settings = settings_of(optimizer);
  check_plain(settings, place);
  set_common(run, settings, settings.at(settings.root).items, tensors, warnings);
}

void set_common_settings(UniversalRun& run, megatron::OptimizerSettings const& settings,
                         std::vector<UniversalTensor> const& tensors, std::string const& place,
                         std::vector<std::string>& warnings) {
  Document const& document = settings.document;
  std::vector<NodeId> groups;
  for (NodeId const optimizer : settings.optimizers)
    if (NodeId const list = groups_of(document, optimizer); list != no_node)
      for (NodeId const group : document.at(list).items) groups.push_back(group);
  if (groups.empty()) refuse_without_settings(place);
  run.steps = settings.torch_step;
  for (NodeId const group : groups)
    if (!run.steps) run.steps = document.number(document.find(group, "step"));
  if (!run.steps) refuse_without_steps(place);
  set_common(run, document, groups, tensors, warnings);
}

void set_made_states(UniversalRun& run, std::vector<UniversalTensor> const& tensors,
                     std::int64_t samples) {
  std::vector<std::pair<SharedText, SharedShape>> shapes;
  for (UniversalTensor const* one : masters(tensors))
    shapes.emplace_back(one->parameter, one->shape);
  run.add_states = [shapes = std::move(shapes), iteration = run.iteration, version = run.version,
                    samples](Document& document) {
    auto const set = [&](std::string_view key, NodeId value) {
      document.set(document.root, key, value);
    };
    NodeId const group = document.add_dict();
    for (auto const& [name, shape] : shapes) {
      std::vector<NodeId> sizes;
      for (Index const size : shape) sizes.push_back(document.add_int(size));
      // Names of parameters are not repeated, so they need no search.
      document.at(group).items.push_back(document.add_string(name.text()));
      NodeId const tuple = document.add_tuple(std::move(sizes));
      document.at(group).items.push_back(tuple);
    }
    set("buffer_names", document.add_list());
    set("optimizer", document.add_none());
    set("param_shapes", document.add_list({group}));
    set("frozen_param_shapes", document.add_none());
    set("shared_params", document.add_dict());
    set("frozen_param_fragments", document.add_none());
    NodeId const schedule = document.add_dict();
    document.set(schedule, "last_batch_iteration", document.add_int(iteration - 1));
    document.set(schedule, "last_epoch", document.add_int(iteration));
    document.set(schedule, "_step_count", document.add_int(iteration + 1));
    document.set(schedule, "lr_lambdas", document.add_list());
    set("lr_scheduler", schedule);
    set("data_sampler", document.add_none());
    set("random_ltd", document.add_none());
    set("sparse_tensor_module_names", document.add_list());
    set("skipped_steps", document.add_int(0));
    set("global_steps", document.add_int(iteration));
    set("global_samples", document.add_int(samples));
    set("dp_world_size", document.add_int(1));
    set("mp_world_size", document.add_int(1));
    set("ds_config", document.add_dict());
    set("ds_version", document.add_string(version));
  };
}

}  // namespace reshard::deepspeed
