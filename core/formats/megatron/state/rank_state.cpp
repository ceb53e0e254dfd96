#include "core/formats/megatron/state/rank_state.hpp"

#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "core/base/error.hpp"
#include "core/base/tables/counted.hpp"
#include "core/formats/megatron/headers/shard.hpp"

namespace reshard::megatron {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::Node;
using pickle::NodeId;

/// More optimizers than any model has.
constexpr std::size_t most_optimizers = 64;

/// The values under integer keys of a dict, by key.
std::map<std::int64_t, NodeId> numbered(Document const& document, NodeId dict) {
  std::map<std::int64_t, NodeId> found;
  if (dict == no_node || document.at(dict).kind != Kind::dict) return found;
  auto const& items = document.at(dict).items;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (Node const& key = document.at(items[i]); key.kind == Kind::integer)
      found[key.integer] = items[i + 1];
  return found;
}

std::vector<NodeId> list_items(Document const& document, NodeId list) {
  if (list == no_node || document.at(list).kind != Kind::list) return {};
  return document.at(list).items;
}

bool is_dict(Document const& document, NodeId id) {
  return id != no_node && document.at(id).kind == Kind::dict;
}

/// The dict of torch's own optimizer inside one of Megatron's: that itself for F32 weights.
NodeId torch_optimizer(Document const& document, NodeId optimizer) {
  for (std::string_view const key : {"optimizer", "optimizer_state_dict"})
    if (NodeId const inner = document.find(optimizer, key); is_dict(document, inner)) return inner;
  return optimizer;
}

/// Reads one file; knows its path for errors.
class Reader {
 public:
  Reader(TorchFile const& torch, std::string const& path)
      : torch_(torch), document_(torch.document), path_(path) {}

  FileState distributed() {
    std::vector<NodeId> chain{document_.root};
    if (document_.root != no_node && document_.at(document_.root).kind == Kind::list)
      chain = list_items(document_, document_.root);
    check_chain(chain.size());
    for (std::size_t c = 0; c < chain.size(); ++c)
      if (chain[c] != no_node && document_.at(chain[c]).kind != Kind::none)
        add_buffers(chain[c], static_cast<Index>(c));
    return finished();
  }

  FileState shard() {
    std::vector<NodeId> const chain = optimizers_of(document_);
    check_chain(chain.size());
    Document settings;
    settings.root = settings.add_list();
    for (std::size_t c = 0; c < chain.size(); ++c) {
      add_groups(chain[c], static_cast<Index>(c));
      NodeId const one = add_settings(settings, document_, chain[c]);
      settings.at(settings.root).items.push_back(one);
    }
    if (!state_.steps.empty() && state_.steps.size() != with_state_)
      fail(ErrorKind::source,
           "{}: {} of {} with optimizer state have a 'step'; either all have one or "
           "none. The file is damaged: restore it, or set source.optimizer = \"drop\".",
           path_, state_.steps.size(), counted(with_state_, "parameter"));
    if (!settings.tensors.empty())
      fail(ErrorKind::source,
           "{}: 'optimizer' has tensors among the settings of a parameter group, which this "
           "version cannot reshard. Set source.optimizer = \"drop\" to continue without it.",
           path_);
    if (!chain.empty()) state_.settings = pickle::dump(settings);
    return finished();
  }

 private:
  void check_chain(std::size_t optimizers) const {
    if (optimizers > most_optimizers)
      fail(ErrorKind::source,
           "{}: holds a list of {} optimizers, expected at most {}. The file is damaged: restore "
           "it, or set source.optimizer = \"drop\".",
           path_, optimizers, most_optimizers);
  }

  FileState finished() {
    std::vector<FileTensor const*> tensors;
    for (StateBuffer const& buffer : state_.buffers)
      for (FileTensor const& tensor : buffer.states) tensors.push_back(&tensor);
    for (StateGroup const& group : state_.groups)
      for (auto const& member : group.members)
        for (FileTensor const& tensor : member) tensors.push_back(&tensor);
    state_.records = records_with(torch_, tensors);
    return std::move(state_);
  }

  // --- distrib_optim.pt ---------------------------------------------------------------------

  void add_buffers(NodeId optimizer, Index chain) {
    if (!is_dict(document_, optimizer)) fail_state(chain, "is not a dict of buffers");
    NodeId const coalesced = document_.find(optimizer, "buckets_coalesced");
    if (coalesced == no_node || document_.at(coalesced).kind != Kind::boolean ||
        !document_.at(coalesced).boolean)
      fail(ErrorKind::source,
           "{}: optimizer {} lacks 'buckets_coalesced': it was saved before Megatron-Core 0.7 "
           "(May 2024), in a form that this version cannot reshard. Load it in a later Megatron at "
           "the old sizes and save again, or set source.optimizer = \"drop\".",
           path_, chain);
    for (auto const& [buffer, by_dtype] : numbered(document_, optimizer)) {
      if (!is_dict(document_, by_dtype))
        fail_state(chain, fmt::format("has a buffer {} that is not a dict", buffer));
      auto const& items = document_.at(by_dtype).items;
      for (std::size_t i = 0; i + 1 < items.size(); i += 2)
        add_buffer(chain, weights_of(chain, buffer, items[i]), items[i + 1]);
    }
  }

  /// The first of a pair of dtypes: of the parameters, and of their gradients.
  std::string weights_of(Index chain, std::int64_t buffer, NodeId key) const {
    Node const& pair = document_.at(key);
    if (pair.kind == Kind::tuple && pair.items.size() == 2) {
      auto const [module, name] = document_.class_of(pair.items.front());
      if (module == "torch") return std::string(name);
    }
    fail_state(chain, fmt::format("has a buffer {} without a pair of dtypes", buffer));
  }

  void add_buffer(Index chain, std::string weights, NodeId node) {
    Index const number = static_cast<Index>(state_.buffers.size());
    StateBuffer buffer{chain, number, std::move(weights), {}};
    std::string const place = fmt::format("optimizer {}, buffer {}", chain, number);
    for (auto const& [slot, value] : document_.members(node)) {
      if (document_.at(value).kind != Kind::tensor) continue;
      buffer.states.push_back(tensor(value, slot));
      check_vector(buffer.states.back(), buffer.states.front(), place);
    }
    if (buffer.states.empty())
      fail(ErrorKind::source,
           "{}: {} has no tensors. The file is damaged or was not written by Megatron: restore it, "
           "or set source.optimizer = \"drop\".",
           path_, place);
    NodeId const stated = document_.find(node, "numel_unpadded");
    Index const elements = buffer.states.front().shape.front();
    if (stated != no_node && number_of(stated) != elements)
      fail(ErrorKind::source,
           "{}: {} states numel_unpadded = {}, and '{}' has {} elements. The file is damaged, or "
           "padding was saved with it: restore it, or set source.optimizer = \"drop\".",
           path_, place, number_of(stated), buffer.states.front().name, elements);
    state_.buffers.push_back(std::move(buffer));
  }

  Index number_of(NodeId id) const {
    Node const& node = document_.at(id);
    return node.kind == Kind::integer ? node.integer : -1;
  }

  void check_vector(FileTensor const& one, FileTensor const& first,
                    std::string const& place) const {
    if (one.shape.size() == 1 && one.shape == first.shape && one.strides.empty() &&
        one.dtype == DType::f32)
      return;
    fail(ErrorKind::source,
         "{}: {}: '{}' is {} of shape ({}), expected a contiguous vector of F32{}. The file is "
         "damaged or was not written by Megatron: restore it, or set source.optimizer = \"drop\".",
         path_, place, one.name, name(one.dtype), fmt::join(one.shape, ", "),
         first.shape.size() == 1
             ? fmt::format(" with {} elements like '{}'", first.shape.front(), first.name)
             : "");
  }

  [[noreturn]] void fail_state(Index chain, std::string_view what) const {
    fail(ErrorKind::source,
         "{}: optimizer {} {}. The file is damaged or was not written by Megatron: restore it, or "
         "set source.optimizer = \"drop\".",
         path_, chain, what);
  }

  // --- model_optim_rng.pt -------------------------------------------------------------------

  void add_groups(NodeId optimizer, Index chain) {
    NodeId const inner = torch_optimizer(document_, optimizer);
    auto const states = numbered(document_, document_.find(inner, "state"));
    std::vector<NodeId> const groups = list_items(document_, document_.find(inner, "param_groups"));
    std::vector<NodeId> const masters = masters_of(optimizer);
    if (states.empty() && masters.empty()) return;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      std::vector<NodeId> const members =
          list_items(document_, document_.find(groups[g], "params"));
      std::vector<NodeId> const of_group =
          g < masters.size() ? list_items(document_, masters[g]) : std::vector<NodeId>();
      if (!masters.empty() && of_group.size() != members.size())
        fail_state(chain, fmt::format("has {} and {} master weights in group {}",
                                      counted(members.size(), "parameter"), of_group.size(), g));
      StateGroup group{
          chain, group_decays(document_, groups[g]), group_is_decoupled(document_, groups[g]), {}};
      check_members(chain, members);
      for (std::size_t m = 0; m < members.size(); ++m)
        group.members.push_back(
            member(chain, members[m], states, of_group.empty() ? no_node : of_group[m]));
      state_.groups.push_back(std::move(group));
    }
  }

  /// Each parameter has a number of its own.
  void check_members(Index chain, std::vector<NodeId> const& members) {
    for (NodeId const key : members)
      if (number_of(key) < 0 || !seen_.emplace(chain, number_of(key)).second)
        fail_state(chain,
                   fmt::format("lists parameter {} twice, or without a number", number_of(key)));
  }

  std::vector<NodeId> masters_of(NodeId optimizer) const {
    for (std::string_view const key : {"fp32_from_fp16_params", "fp32_from_fp16"})
      if (NodeId const found = document_.find(optimizer, key); found != no_node)
        return list_items(document_, found);
    return {};
  }

  std::vector<FileTensor> member(Index chain, NodeId key,
                                 std::map<std::int64_t, NodeId> const& states, NodeId master) {
    std::vector<FileTensor> result;
    if (master != no_node) {
      if (document_.at(master).kind != Kind::tensor)
        fail_state(chain, "has a master weight that is not a tensor");
      result.push_back(tensor(master, std::string(master_slot)));
    }
    auto const state = states.find(number_of(key));
    if (state == states.end()) return result;  // it never had a gradient
    ++with_state_;
    for (auto const& [slot, value] : document_.members(state->second)) {
      if (document_.at(value).kind != Kind::tensor) continue;
      if (slot == "step")
        state_.steps.push_back(tensor(value, slot));
      else
        result.push_back(tensor(value, slot));
    }
    return result;
  }

  FileTensor tensor(NodeId id, std::string const& slot) const {
    return file_tensor(torch_, document_.tensors[document_.at(id).index], slot);
  }

  TorchFile const& torch_;
  Document const& document_;
  std::string const& path_;
  FileState state_;
  std::set<std::pair<Index, Index>> seen_;  ///< parameters, by optimizer
  std::size_t with_state_ = 0;
};

}  // namespace

FileState distributed_state(TorchFile const& torch, std::string const& path) {
  return Reader(torch, path).distributed();
}

FileState shard_state(TorchFile const& torch, std::string const& path) {
  return Reader(torch, path).shard();
}

void read_steps(FileState& state, File const& file) {
  for (FileTensor const& step : state.steps) {
    float value = 0;
    if (step.dtype != DType::f32 || step.size_bytes != sizeof value) continue;
    file.read_at(step.offset_bytes, std::as_writable_bytes(std::span(&value, 1)));
    if (state.torch_steps && *state.torch_steps != double{value})
      fail(ErrorKind::source,
           "{}: parameters of the optimizer are at step {} and at step {}, and Megatron's "
           "formats have one step for all. Restore the file if it was changed, or set "
           "source.optimizer = \"drop\".",
           file.path().string(), *state.torch_steps, value);
    state.torch_steps = value;
  }
  state.steps.clear();
}

std::vector<NodeId> optimizers_of(Document const& shard) {
  if (shard.root == no_node) return {};
  NodeId const all = shard.find(shard.root, "optimizer");
  if (all == no_node || shard.at(all).kind == Kind::none) return {};
  if (shard.at(all).kind == Kind::list) return shard.at(all).items;
  return {all};
}

bool group_decays(Document const& document, NodeId group) {
  for (std::string_view const key : {"wd_mult", "pre_wd_mult"})
    if (auto const factor = document.number(document.find(group, key))) return *factor != 0;
  return true;
}

bool group_is_decoupled(Document const& document, NodeId group) {
  return document.number(document.find(group, "is_decoupled_lr")).value_or(0) != 0;
}

NodeId add_settings(Document& settings, Document const& from, NodeId optimizer) {
  NodeId const result = settings.add_dict();
  NodeId const inner = torch_optimizer(from, optimizer);
  NodeId holder = result;
  if (inner != optimizer) {
    holder = settings.add_dict();
    settings.set(result, "optimizer", holder);
  }
  NodeId groups = from.find(inner, "param_groups");
  if (groups == no_node || from.at(groups).kind != Kind::list)
    groups = settings.add_list();
  else
    groups = settings.add_copy(from, groups);
  std::erase_if(settings.at(groups).items, [&](NodeId group) { return !is_dict(settings, group); });
  for (NodeId const group : settings.at(groups).items) settings.erase(group, "params");
  settings.set(holder, "param_groups", groups);
  return result;
}

}  // namespace reshard::megatron
