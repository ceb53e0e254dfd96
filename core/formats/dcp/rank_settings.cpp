#include "core/formats/dcp/rank_settings.hpp"

#include "core/formats/dcp/optimizer_groups.hpp"
#include "core/formats/megatron/rank_states.hpp"

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
  megatron::RankStates const& states = *source.rank_states;
  Settings settings(record.document(), states.distributed);
  for (std::size_t s = 0; s < states.settings.size(); ++s)
    settings.add(states.settings[s], states.places[s]);
  return std::move(settings).finish();
}

}  // namespace reshard
