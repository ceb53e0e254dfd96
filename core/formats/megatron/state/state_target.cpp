#include "core/formats/megatron/state/state_target.hpp"

#include <algorithm>
#include <cstring>

#include "core/containers/torch/torch_types.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/mcore/optimizer_groups.hpp"
#include "core/formats/megatron/state/rank_state.hpp"

namespace reshard::megatron {
namespace {

using pickle::Document;
using pickle::no_node;
using pickle::NodeId;

bool is_master(std::string_view slot) {
  return slot == distributed_master_slot || slot == master_slot;
}

std::string torch_bytes(double value) {
  auto const single = static_cast<float>(value);
  std::string bytes(sizeof single, '\0');
  std::memcpy(bytes.data(), &single, sizeof single);
  return bytes;
}

void add_pair(Document& document, NodeId dict, Index key, NodeId value) {
  NodeId const number = document.add_int(key);
  document.at(dict).items.push_back(number);
  document.at(dict).items.push_back(value);
}

/// The places of slots in the file.
std::vector<Index> starts(FlatLayout const& layout) {
  std::vector<Index> result;
  for (FlatSlot const& slot : layout.slots) result.push_back(layout.in_file(slot));
  return result;
}

}  // namespace

/// One optimizer of a file that is being made.
struct StateTarget::Optimizer {
  Document& document;
  std::vector<StateTensor>& tensors;
  NodeId node = no_node;
};

StateTarget::StateTarget(StateModel const& model)
    : model_(model),
      sizes_(sizes_of(model.parts.request->target.mesh)),
      shares_({*model.parts.model, model.map, *model.parts.side, model.parts.request->target.mesh,
               model.chunks,
               [parts = model.parts](StoredName const& name) {
                 return std::string(reshard::name(stored_dtype(parts, name)));
               },
               model.settings.optimizers.size() > 1,
               [this](StoredName const& name) {
                 bool const any = has_any(name);
                 if (!any) frozen_.insert(name.name);
                 return any;
               }}) {
  auto const& slots = model.parts.model->slots();
  for (std::size_t s = 1; s < slots.size(); ++s) {
    if (is_master(slots[s]))
      masters_ = SlotId(s);
    else
      moments_.push_back(SlotId(s));
  }
}

/// Dense state lies in the folder of the first rank of each tensor rank, state of experts in those
/// of the first ranks of each group of experts: ranks count along tp, and along etp, then ep.
bool StateTarget::holds(ShardPlace const& place, std::size_t chain) const {
  if (model_.settings.optimizers.size() == 1) return true;
  int const etp = sizes_.etp == 0 ? sizes_.tp : sizes_.etp;
  if (chain == 0) return place.ep == place.tp / etp % sizes_.ep;
  for (int rank = 0; rank < etp * sizes_.ep; ++rank)
    if (rank % sizes_.tp == place.tp && rank / etp == place.ep) return true;
  return false;
}

bool StateTarget::has(StoredName const& name, SlotId slot) const {
  Model const& model = *model_.parts.model;
  return std::ranges::all_of(model_.parts.side->tensors(name.entry), [&](TensorId tensor) {
    return model.exists(model.in_slot(tensor, slot));
  });
}

bool StateTarget::has_any(StoredName const& name) const {
  for (std::size_t s = 1; s < model_.parts.model->slots().size(); ++s)
    if (has(name, SlotId(s))) return true;
  return false;
}

/// Whether a weight has fewer bits than its master.
bool StateTarget::is_narrow(StoredName const& name) const {
  return stored_dtype(model_.parts, name) != DType::f32;
}

std::string StateTarget::described(StoredName const& name, SlotId slot) const {
  return fmt::format("{} ({})", name.name, model_.parts.model->slots()[index(slot)]);
}

// --- distrib_optim.pt ---------------------------------------------------------------------------

std::vector<bool> StateTarget::held(ShardPlace const& place) const {
  std::vector<bool> result;
  for (std::size_t chain = 0; chain < model_.settings.optimizers.size(); ++chain)
    result.push_back(holds(place, chain));
  return result;
}

std::optional<StateFile> StateTarget::distributed_file(ShardPlace const& place) {
  std::vector<bool> const here = held(place);
  if (std::ranges::find(here, true) == here.end()) return std::nullopt;
  MeshPlace const at = place_of(model_.parts.request->target.mesh, place);
  StateFile file;
  std::vector<NodeId> optimizers;
  for (std::size_t chain = 0; chain < here.size(); ++chain)
    optimizers.push_back(here[chain] ? add_buffers(file, at, place.pp, chain)
                                     : file.document.add_none());
  file.document.root = here.size() == 1 ? optimizers.front() : file.document.add_list(optimizers);
  return file;
}

FlatLayout StateTarget::layout(BufferShare const& share, int stage) {
  std::vector<FlatParameter> const parameters = shares_.flat(share);
  FlatChunk const chunk{share.chunk == 0, shares_.rank_elements(stage)};
  FlatLayout result = flat_layout(parameters, flat_rules(model_.args, chunk).front());
  // With one bucket, and with one for each parameter.
  for (Index const bucket : {Index{0}, Index{1}})
    if (chunk.first && starts(flat_layout(parameters, {bucket})) != starts(result))
      depends_on_buckets_ = true;
  return result;
}

NodeId StateTarget::add_buffers(StateFile& file, MeshPlace const& at, int stage,
                                std::size_t chain) {
  Document& document = file.document;
  NodeId const optimizer = document.add_dict();
  document.set(optimizer, "buckets_coalesced", document.add_bool(true));
  Json const wide = fact(model_.args, "accumulate_allreduce_grads_in_fp32");
  Index number = 0;
  for (BufferShare const& share : shares_.of(at, stage, chain == 1)) {
    FlatLayout const layout = this->layout(share, stage);
    Index elements = 0;
    for (Index const bucket : layout.buckets) elements += bucket;
    NodeId const states = document.add_dict();
    auto const add = [&](std::string_view key, std::optional<SlotId> slot) {
      document.set(states, key, document.add_tensor(DType::f32, {elements}));
      file.tensors.push_back(flat_state(share, layout, slot));
    };
    add(distributed_master_slot, masters_);
    for (SlotId const slot : moments_) add(model_.parts.model->slots()[index(slot)], slot);
    document.set(states, "numel_unpadded", document.add_int(elements));
    DType const weights = *dtype_from_name(share.weights);
    std::string_view const torch_name = pickle::torch_type(weights)->name;
    bool const narrow_gradients = wide.boolean() != nullptr && !*wide.boolean();
    NodeId const key = document.add_tuple(
        {document.add_global("torch", torch_name),
         document.add_global("torch", narrow_gradients ? torch_name : "float32")});
    NodeId const by_dtype = document.add_dict();
    document.at(by_dtype).items = {key, states};
    add_pair(document, optimizer, number++, by_dtype);
  }
  return optimizer;
}

/// One state of all parameters of a buffer. F32 weights are their own masters.
StateTensor StateTarget::flat_state(BufferShare const& share, FlatLayout const& layout,
                                    std::optional<SlotId> slot) {
  StateTensor result;
  for (std::size_t p = 0; p < share.parameters.size(); ++p) {
    StoredName const& name = shares_.name(share, share.parameters[p]);
    SlotId held = slot.value_or(SlotId::weight);
    if (slot == masters_ && (!slot || !has(name, *slot))) {
      held = SlotId::weight;
      auto const& own = model_.parts.side->tensors(name.entry);
      own_masters_.insert(own.begin(), own.end());
    }
    bool const lacking = held == SlotId::weight ? is_narrow(name) : !has(name, held);
    if (lacking)
      fail(
          ErrorKind::source,
          "source: '{}' has no {}, which distrib_optim.pt holds for every parameter. It was frozen, "
          "or never had a gradient: choose target.optimizer = \"inline\", or set source.optimizer "
          "= \"drop\".",
          name.name, slot == masters_ ? "master weight" : described(name, held));
    if (DType const dtype = stored_dtype(model_.parts, name, held); dtype != DType::f32)
      fail(ErrorKind::source,
           "source: {} is {}, and distrib_optim.pt holds F32. Choose target.optimizer = "
           "\"inline\", or set source.optimizer = \"drop\".",
           described(name, held), reshard::name(dtype));
    result.parts.push_back({&name, &shares_.chunk(share), held, layout.in_file(layout.slots[p])});
    if (p == 0) result.name = described(name, held) + " …";
  }
  return result;
}

// --- model_optim_rng.pt -------------------------------------------------------------------------

void StateTarget::add_to_shard(Document& shard, ShardPlace const& place,
                               std::vector<StateTensor>& tensors) {
  MeshPlace const at = place_of(model_.parts.request->target.mesh, place);
  OptimizerSettings const& settings = model_.settings;
  std::vector<NodeId> optimizers;
  for (std::size_t chain = 0; chain < settings.optimizers.size(); ++chain) {
    std::size_t const before = shard.tensors.size();
    NodeId optimizer = shard.add_copy(settings.document, settings.optimizers[chain]);
    for (std::size_t t = before; t < shard.tensors.size(); ++t) {
      pickle::TensorRef const& tensor = shard.tensors[t];
      tensors.push_back({"loss scale", tensor.dtype, {}, settings.payloads.at(tensor.storage.key)});
    }
    if (model_.distributed && shard.find(optimizer, "optimizer") == no_node) {
      NodeId const outer = shard.add_dict();
      shard.set(outer, "optimizer", optimizer);
      optimizer = outer;
    }
    if (NodeId const groups = groups_of(shard, optimizer); groups != no_node)
      complete_steps(shard, groups);
    Optimizer to{shard, tensors, optimizer};
    if (!model_.distributed) add_groups(to, at, place.pp, chain);
    optimizers.push_back(optimizer);
  }
  shard.set(shard.root, "optimizer",
            optimizers.size() == 1 ? optimizers.front() : shard.add_list(optimizers));
}

/// torch's own AdamW has its steps in groups with the distributed optimizer, else in the states.
/// Other optimizers have them in all groups.
void StateTarget::complete_steps(Document& document, NodeId groups) const {
  NodeId known = no_node;
  for (NodeId const group : document.at(groups).items)
    if (known == no_node) known = document.find(group, "step");
  for (NodeId const group : std::vector<NodeId>(document.at(groups).items)) {
    if (model_.settings.torch_step && !model_.distributed)
      document.erase(group, "step");
    else if (model_.settings.torch_step)
      document.set(group, "step", document.add_real(*model_.settings.torch_step));
    else if (known != no_node && document.find(group, "step") == no_node)
      document.set(group, "step", known);
  }
}

/// The parameters of a rank by parameter group, in order of registration.
std::vector<std::vector<StateTarget::Member>> StateTarget::members(
    Document const& document, std::vector<NodeId> const& groups, MeshPlace const& at, int stage,
    std::size_t chain) {
  bool const any_decoupled = std::ranges::any_of(
      groups, [&](NodeId group) { return group_is_decoupled(document, group); });
  std::vector<std::vector<Member>> result(groups.size());
  for (BufferShare const& share : shares_.parameters(at, stage, chain == 1))
    for (RankParameter const& parameter : share.parameters) {
      Member const member{&shares_.name(share, parameter), {at, &shares_.chunk(share)}};
      std::string const& name = member.name->name;
      bool const decay =
          decays(name, model_.parts.side->layout(member.name->entry, member.place).file_shape,
                 model_.args);
      bool const decoupled = any_decoupled && may_be_decoupled(name);
      auto const fits = [&](NodeId group) {
        return group_decays(document, group) == decay &&
               group_is_decoupled(document, group) == decoupled;
      };
      auto const found = std::ranges::find_if(groups, fits);
      if (found != groups.end() && std::any_of(found + 1, groups.end(), fits))
        fail(ErrorKind::source,
             "source: optimizer {} has several parameter groups {} weight decay, and '{}' of the "
             "target may belong to each of them. The run had its own parameter groups, such as "
             "those of muP, which this version cannot write into model_optim_rng.pt: choose "
             "target.format = \"torch_dist\" or target.optimizer = \"distributed\", or set "
             "source.optimizer = \"drop\".",
             chain, decay ? "with" : "without", name);
      if (found == groups.end())
        fail(ErrorKind::source,
             "source: optimizer {} has no parameter group {} weight decay, which '{}' of the "
             "target belongs to. The run had its own parameter groups, which this version "
             "cannot write into model_optim_rng.pt: choose target.format = \"torch_dist\" or "
             "target.optimizer = \"distributed\", or set source.optimizer = \"drop\".",
             chain, decay ? "with" : "without", name);
      result[static_cast<std::size_t>(found - groups.begin())].push_back(member);
    }
  return result;
}

void StateTarget::add_groups(Optimizer& to, MeshPlace const& at, int stage, std::size_t chain) {
  Document& document = to.document;
  NodeId const nested = document.find(to.node, "optimizer");
  NodeId const groups = groups_of(document, to.node);
  std::vector<NodeId> const list =
      groups == no_node ? std::vector<NodeId>() : document.at(groups).items;
  auto const of_groups = members(document, list, at, stage, chain);
  NodeId const state = document.add_dict();
  std::vector<NodeId> masters;
  Index number = 0;
  for (std::size_t g = 0; g < list.size(); ++g) {
    std::vector<NodeId> numbers;
    std::vector<NodeId> of_group;
    for (Member const& member : of_groups[g]) {
      numbers.push_back(document.add_int(number));
      add_moments(to, state, number++, member);
      if (is_narrow(*member.name))
        of_group.push_back(add_master(to, member));
      else
        refuse_copy(*member.name);
    }
    document.set(list[g], "params", document.add_list(std::move(numbers)));
    masters.push_back(document.add_list(std::move(of_group)));
  }
  document.set(nested == no_node ? to.node : nested, "state", state);
  if (nested != no_node)
    document.set(to.node, "fp32_from_fp16_params", document.add_list(std::move(masters)));
}

/// Without the distributed optimizer F32 weights have no copies.
void StateTarget::refuse_copy(StoredName const& name) const {
  if (!masters_ || !has(name, *masters_)) return;
  fail(ErrorKind::usage,
       "[target] optimizer = \"inline\": '{}' is F32, and the source's distributed optimizer "
       "has a copy of it, which model_optim_rng.pt cannot hold. Set target.optimizer = "
       "\"distributed\", or target.format = \"torch_dist\".",
       name.name);
}

NodeId StateTarget::add_master(Optimizer& to, Member const& member) const {
  if (masters_ && has(*member.name, *masters_)) return add_state(to, member, *masters_);
  fail(ErrorKind::source,
       "source: '{}' has no master weight, which model_optim_rng.pt holds for every {} weight. It "
       "was frozen, or the files are of two saves: restore those of one, or set source.optimizer = "
       "\"drop\".",
       member.name->name, reshard::name(stored_dtype(model_.parts, *member.name)));
}

/// The moments of one parameter; one that never had a gradient has none.
void StateTarget::add_moments(Optimizer& to, NodeId state, Index number,
                              Member const& member) const {
  auto const held = [&](SlotId slot) { return has(*member.name, slot); };
  if (std::ranges::none_of(moments_, held)) return;
  NodeId const states = to.document.add_dict();
  if (model_.settings.torch_step) {
    to.document.set(states, "step", to.document.add_tensor(DType::f32, {}));
    to.tensors.push_back({"step", DType::f32, {}, torch_bytes(*model_.settings.torch_step)});
  }
  for (SlotId const slot : moments_)
    if (held(slot))
      to.document.set(states, model_.parts.model->slots()[index(slot)],
                      add_state(to, member, slot));
  add_pair(to.document, state, number, states);
}

NodeId StateTarget::add_state(Optimizer& to, Member const& member, SlotId slot) const {
  auto const& [name, place] = member;
  DType const dtype = stored_dtype(model_.parts, *name, slot);
  to.tensors.push_back({described(*name, slot), dtype, {{name, place.chunk, slot}}, ""});
  return to.document.add_tensor(dtype, model_.parts.side->layout(name->entry, place).file_shape);
}

}  // namespace reshard::megatron
