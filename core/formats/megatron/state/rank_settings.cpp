#include "core/formats/megatron/state/rank_settings.hpp"

#include <cstring>

#include "core/formats/megatron/mcore/optimizer_groups.hpp"
#include "core/formats/megatron/state/rank_states.hpp"
#include "core/formats/run/torch_optimizer.hpp"

namespace reshard {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::NodeId;

/// torch's own AdamW counts steps for each parameter, in tensors; torch_dist has one for all.
NodeId common_step(Document const& shard, NodeId optimizer) {
  if (NodeId const inner = shard.find(optimizer, "optimizer"); inner != no_node) optimizer = inner;
  NodeId const state = shard.find(optimizer, "state");
  if (state == no_node || shard.at(state).kind != Kind::dict) return no_node;
  auto const& items = shard.at(state).items;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (NodeId const step = shard.find(items[i + 1], "step");
        step != no_node && shard.at(step).kind == Kind::tensor)
      return step;
  return no_node;
}

/// Collects the settings of each optimizer.
class Settings {
 public:
  Settings(Document const& shard, bool distributed) : distributed_(distributed) {
    for (NodeId const optimizer : megatron::optimizers_of(shard))
      optimizers_.push_back(first(shard, optimizer));
  }

  void add(std::string const& pickled, std::string const& place) {
    Document const others = pickle::parse(std::as_bytes(std::span(pickled)), place);
    auto const& list = others.at(others.root).items;
    if (list.size() != optimizers_.size())
      fail(ErrorKind::source,
           "{}: 'optimizer' is of {} optimizers, and {} in another rank's file. The files are of "
           "two saves: restore those of one, or set source.optimizer = \"drop\".",
           place, list.size(), optimizers_.size());
    for (std::size_t c = 0; c < list.size(); ++c)
      add_lacking_groups(document_, optimizers_[c], document_.add_copy(others, list[c]), place);
  }

  /// {0: …, 1: …}, or the only one.
  Document finish() && {
    document_.root = document_.add_dict();
    NodeId all = optimizers_.front();
    if (optimizers_.size() > 1) {
      all = document_.add_dict();
      for (std::size_t c = 0; c < optimizers_.size(); ++c) {
        NodeId const number = document_.add_int(static_cast<std::int64_t>(c));
        document_.at(all).items.push_back(number);
        document_.at(all).items.push_back(optimizers_[c]);
      }
    }
    document_.set(document_.root, "optimizer", all);
    return std::move(document_);
  }

 private:
  NodeId first(Document const& shard, NodeId optimizer) {
    NodeId const result = megatron::add_settings(document_, shard, optimizer);
    if (NodeId const scaler = shard.find(optimizer, "grad_scaler"); scaler != no_node)
      document_.set(result, "grad_scaler", document_.add_copy(shard, scaler));
    if (NodeId const step = common_step(shard, optimizer); step != no_node && !distributed_) {
      NodeId const inner = document_.find(result, "optimizer");
      NodeId const state = document_.add_dict();
      document_.set(state, "common_step", document_.add_copy(shard, step));
      document_.set(inner == no_node ? result : inner, "state", state);
    }
    if (distributed_)
      document_.set(result, "param_state_sharding_type", document_.add_string("fully_reshardable"));
    return result;
  }

  bool distributed_;
  Document document_;
  std::vector<NodeId> optimizers_;
};

}  // namespace

Document rank_settings(Checkpoint const& source, RunRecord const& record) {
  megatron::RankStates const& states = *source.state.rank_states;
  Settings settings(record.document(), states.distributed);
  for (std::size_t s = 0; s < states.settings.size(); ++s)
    settings.add(states.settings[s], states.places[s]);
  return std::move(settings).finish();
}

Document common_settings(Checkpoint const& source, RunRecord const& record) {
  if (source.state.rank_states) return rank_settings(source, record);
  if (source.state.torch_optimizer)
    return megatron_settings(*source.state.torch_optimizer, source.place);
  Document const& from = record.document();
  Document result;
  result.root = result.add_dict();
  if (NodeId const optimizer = from.find(from.root, "optimizer"); optimizer != no_node)
    result.set(result.root, "optimizer", result.add_copy(from, optimizer));
  return result;
}

void check_settings(Document const& common, std::string const& place) {
  NodeId known = no_node;
  for (Index chain = 0; settings_of_chain(common, chain) != no_node; ++chain) {
    NodeId const groups = groups_of(common, settings_of_chain(common, chain));
    if (groups == no_node) break;
    for (NodeId const group : common.at(groups).items) {
      NodeId const step = common.find(group, "step");
      if (known == no_node) known = group;
      NodeId const other = common.find(known, "step");
      if (step != no_node && other != no_node &&
          common.at(step).integer != common.at(other).integer)
        fail(ErrorKind::source,
             "{}: the optimizer is at step {} in one parameter group and at {} in another. Restore "
             "the file if it was changed, or set source.optimizer = \"drop\".",
             place, common.at(other).integer, common.at(step).integer);
    }
  }
  if (known == no_node)
    fail(ErrorKind::source,
         "{}: holds optimizer state and no settings of an optimizer. The save was interrupted, or "
         "the file is of another save: restore it, or set source.optimizer = \"drop\".",
         place);
}

namespace megatron {
namespace {

/// The steps of torch's own AdamW: the distributed optimizer writes them into groups, as a
/// floating-point number, where others count in integers.
std::optional<double> steps_in_groups(Document const& document, NodeId optimizer) {
  NodeId const groups = groups_of(document, optimizer);
  if (groups == no_node) return std::nullopt;
  for (NodeId const group : document.at(groups).items)
    if (NodeId const step = document.find(group, "step");
        step != no_node && document.at(step).kind == Kind::real)
      return document.at(step).real;
  return std::nullopt;
}

/// The steps that the plain optimizer has in common, as a tensor.
std::optional<double> common_steps(OptimizerSettings const& settings, NodeId optimizer) {
  Document const& document = settings.document;
  NodeId inner = document.find(optimizer, "optimizer");
  if (inner == no_node) inner = optimizer;
  NodeId const step = document.find(document.find(inner, "state"), "common_step");
  if (step == no_node || document.at(step).kind != Kind::tensor) return std::nullopt;
  pickle::TensorRef const& tensor = document.tensors[document.at(step).index];
  std::string const& bytes = settings.payloads.at(tensor.storage.key);
  float value = 0;
  if (tensor.dtype != DType::f32 || bytes.size() != sizeof value) return std::nullopt;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

void set_optimizers(OptimizerSettings& settings) {
  Document const& document = settings.document;
  NodeId const all = document.find(document.root, "optimizer");
  if (!has_several_optimizers(document)) {
    settings.optimizers = {all};
    return;
  }
  for (Index chain = 0; settings_of_chain(document, chain) != no_node; ++chain)
    settings.optimizers.push_back(settings_of_chain(document, chain));
}

}  // namespace

OptimizerSettings optimizer_settings(Checkpoint const& source, RunRecord const& record,
                                     bool experts_apart, bool expert_biases) {
  Document const from = common_settings(source, record);
  NodeId const optimizer = from.find(from.root, "optimizer");
  if (is_chain_of_kinds(from))
    fail(ErrorKind::source,
         "{}: weights are shared among optimizers of several kinds, such as Muon and Adam, which "
         "this version writes into torch_dist only. Choose target.format = \"torch_dist\", or set "
         "source.optimizer = \"drop\".",
         record.file);
  check_settings(from, record.file);
  if (pickle::NotCarried const found = pickle::not_to_carry(from, optimizer);
      !may_be_carried(found, record.foreign_classes))
    refuse_to_carry(fmt::format("{}: 'optimizer'", record.file), found);

  OptimizerSettings result;
  Document& document = result.document;
  document.root = document.add_dict();
  document.set(document.root, "optimizer", document.add_copy(from, optimizer));
  split_optimizers(document, document.root, from, experts_apart, expert_biases);
  for (pickle::TensorRef const& tensor : document.tensors)
    result.payloads.try_emplace(tensor.storage.key, tensor_bytes(record, tensor));
  set_optimizers(result);
  for (NodeId const one : result.optimizers) {
    if (!result.torch_step) result.torch_step = common_steps(result, one);
    if (!result.torch_step) result.torch_step = steps_in_groups(document, one);
    document.erase(one, "param_state_sharding_type");
    document.erase(one, "state");
    if (NodeId const inner = document.find(one, "optimizer"); inner != no_node)
      document.erase(inner, "state");
  }
  return result;
}

}  // namespace megatron
}  // namespace reshard
