#include "core/formats/deepspeed/rank_header.hpp"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/ranges.h>

#include "core/base/error.hpp"
#include "core/formats/deepspeed/folder.hpp"
#include "core/formats/deepspeed/universal.hpp"
#include "core/formats/megatron/headers/shard.hpp"
#include "core/formats/megatron/mcore/mapping_size.hpp"

namespace reshard::deepspeed {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::Node;
using pickle::NodeId;

/// Keys of a file of model states that a target writes anew, or that are not needed.
constexpr std::array known_keys = {"module",
                                   "buffer_names",
                                   "optimizer",
                                   "param_shapes",
                                   "frozen_param_shapes",
                                   "shared_params",
                                   "frozen_param_fragments",
                                   "sparse_tensor_module_names",
                                   "skipped_steps",
                                   "global_steps",
                                   "global_samples",
                                   "dp_world_size",
                                   "mp_world_size",
                                   "checkpoint_parallel_dimensions",
                                   "universal_checkpoint_info",
                                   "ds_config",
                                   "ds_version"};

class Reader {
 public:
  explicit Reader(File const& file)
      : file_(file),
        torch_(read_torch_file(file)),
        document_(torch_.document),
        path_(file.path().string()) {
    check_rank();
  }

  ModelStates model() {
    ModelStates found;
    NodeId const root = document_.root;
    NodeId const module = document_.find(root, "module");
    if (module == no_node || !mapping(module))
      refuse(
          "'module' is not a dict of tensors. The file is not DeepSpeed's, or damaged: "
          "restore it");
    for (auto const& [name, value] : document_.members(module))
      if (is_tensor(value)) found.module.push_back(tensor(value, name));
    read_shapes(document_.find(root, "param_shapes"), found.groups);
    if (NodeId const frozen = document_.find(root, "frozen_param_shapes"); is_set(frozen))
      found.frozen = shapes(frozen);
    if (NodeId const parts = document_.find(root, "frozen_param_fragments"); is_set(parts))
      for (auto const& [name, value] : document_.members(parts))
        if (is_tensor(value)) found.frozen_parts.push_back(tensor(value, name));
    if (NodeId const shared = document_.find(root, "shared_params"); is_set(shared))
      for (auto const& [name, value] : document_.members(shared))
        if (document_.at(value).kind == Kind::string)
          found.shared.emplace_back(name, document_.at(value).text);
    found.data_parallel = integer(root, "dp_world_size", 0);
    found.model_parallel = integer(root, "mp_world_size", 1);
    found.steps = integer(root, "global_steps", 0);
    found.samples = integer(root, "global_samples", 0);
    found.version = text(root, "ds_version");
    found.has_optimizer = is_set(document_.find(root, "optimizer"));
    for (auto const& [key, value] : document_.members(root))
      if (is_set(value) && std::ranges::find(known_keys, key) == known_keys.end())
        found.others.push_back(key);
    std::vector<FileTensor const*> tensors;
    for (FileTensor const& one : found.module) tensors.push_back(&one);
    for (FileTensor const& one : found.frozen_parts) tensors.push_back(&one);
    found.records = megatron::records_with(torch_, tensors);
    return found;
  }

  OptimizerStates optimizer() {
    NodeId const state = document_.find(document_.root, "optimizer_state_dict");
    if (state == no_node || !mapping(state))
      refuse(
          "'optimizer_state_dict' is not a dict. The file is not DeepSpeed's, or damaged: "
          "restore it");
    OptimizerStates found;
    found.version = text(state, "ds_version");
    if (found.version.empty()) found.version = text(document_.root, "ds_version");
    found.stage = stage_of(state);
    found.ranks = ranks_of(state);
    found.scales_loss = is_true(document_.find(state, "dynamic_loss_scale"));
    if (is_set(document_.find(state, "ds_zero_partition_groups")))
      refuse(
          "'ds_zero_partition_groups' spreads parameters over several groups of ranks "
          "(AutoEP), which this version cannot join. Run DeepSpeed's ds_to_universal.py, and "
          "convert the folder that it writes");
    if (NodeId const masters = document_.find(state, "fp32_flat_groups"); masters != no_node)
      add_groups(found, masters, document_.find(state, "optimizer_state_dict"), no_node, state);
    else
      add_groups(found, document_.find(state, "single_partition_of_fp32_groups"),
                 document_.find(state, "base_optimizer_state"),
                 document_.find(state, "param_slice_mappings"), state);
    note_records(found);
    return found;
  }

  OptimizerStates universal(std::string const& slot) {
    OptimizerStates found;
    StateGroup group;
    if (slot == "step") {
      add_step(group, document_.root);
    } else {
      NodeId value = document_.root;
      if (!is_tensor(value)) value = document_.find(value, "param");
      if (!is_tensor(value))
        refuse(
            "expected a tensor, or a dict with a tensor 'param'. The file is damaged: restore it");
      if (document_.find(document_.root, "ep_is_expert_param") != no_node)
        refuse("holds experts of AutoEP, which this version cannot read");
      group.slots.push_back(tensor(value, slot));
    }
    found.groups.push_back(std::move(group));
    note_records(found);
    return found;
  }

  OptimizerStates universal_settings() {
    OptimizerStates found;
    found.version = text(document_.root, "ds_version");
    found.stage = stage_of(document_.root);
    found.scales_loss = is_true(document_.find(document_.root, "dynamic_loss_scale"));
    found.weights_alone = is_true(document_.find(document_.root, weights_alone_key));
    if (found.weights_alone) return found;
    for (NodeId const file : items(document_.find(document_.root, stand_ins_key)))
      found.stand_ins.push_back(document_.at(file).text);
    std::ranges::sort(found.stand_ins);
    add_settings(found, document_.find(document_.root, "param_groups"));
    NodeId const base = document_.find(document_.root, "optimizer_state_dict");
    for (std::size_t g = 0;; ++g) {
      NodeId const states = state_of(base, g);
      if (states == no_node) break;
      add_step(found.groups.emplace_back(), document_.find(states, "step"));
    }
    return found;
  }

 private:
  [[noreturn]] void refuse(std::string_view why) const {
    fail(ErrorKind::source, "{}: {}.", path_, why);
  }

  /// torch.save names the folder in its archive after the file, and DeepSpeed the file after the
  /// rank. Other names are ignored: files may be renamed.
  void check_rank() const {
    auto const outside = parse_rank_name(file_.path().filename().string());
    auto const inside = parse_rank_name(torch_.archive + ".pt");
    if (!outside || !inside || *outside == *inside) return;
    fail(ErrorKind::source,
         "{}: was saved as {}.pt, by the name in its archive. Files of ranks were exchanged or "
         "copied over each other: give each its name, or restore them from the original.",
         path_, torch_.archive);
  }

  bool mapping(NodeId id) const { return megatron::mapping_size(document_, id).has_value(); }
  bool is_tensor(NodeId id) const { return id != no_node && document_.at(id).kind == Kind::tensor; }
  bool is_true(NodeId id) const {
    return id != no_node && document_.at(id).kind == Kind::boolean && document_.at(id).boolean;
  }

  /// Neither absent, nor None, nor empty.
  bool is_set(NodeId id) const {
    if (id == no_node) return false;
    Node const& node = document_.at(id);
    if (node.kind == Kind::none) return false;
    if (node.kind == Kind::list || node.kind == Kind::tuple) return !node.items.empty();
    return megatron::mapping_size(document_, id).value_or(1) > 0;
  }

  FileTensor tensor(NodeId id, std::string name) const {
    return file_tensor(torch_, document_.tensors[document_.at(id).index], std::move(name));
  }

  std::int64_t integer(NodeId dict, std::string_view key, std::int64_t absent) const {
    NodeId const id = document_.find(dict, key);
    return id != no_node && document_.at(id).kind == Kind::integer ? document_.at(id).integer
                                                                   : absent;
  }

  std::string text(NodeId dict, std::string_view key) const {
    NodeId const id = document_.find(dict, key);
    return id != no_node && document_.at(id).kind == Kind::string ? document_.at(id).text : "";
  }

  std::vector<NodeId> items(NodeId list) const {
    if (list == no_node) return {};
    Node const& node = document_.at(list);
    return node.kind == Kind::list || node.kind == Kind::tuple ? node.items : std::vector<NodeId>();
  }

  // --- shapes ---------------------------------------------------------------------------------

  /// A torch.Size, a tuple or a list of integers.
  std::vector<Index> shape(NodeId id, std::string const& name) const {
    if (document_.at(id).kind == Kind::reduce) {
      std::vector<NodeId> const arguments = items(document_.at(id).arguments);
      if (arguments.size() == 1) id = arguments.front();
    }
    Node const& node = document_.at(id);
    bool good = node.kind == Kind::tuple || node.kind == Kind::list;
    std::vector<Index> result;
    if (good)
      for (NodeId const item : node.items) {
        good = good && document_.at(item).kind == Kind::integer && document_.at(item).integer >= 0;
        result.push_back(document_.at(item).integer);
      }
    if (!good)
      refuse(fmt::format("the shape of '{}' is not a list of sizes. Restore the file", name));
    (void)checked_volume(result, ErrorKind::source, fmt::format("{}: '{}'", path_, name));
    return result;
  }

  std::vector<NamedShape> shapes(NodeId dict) const {
    std::vector<NamedShape> result;
    for (auto const& [name, value] : document_.members(dict))
      result.push_back({name, shape(value, name)});
    return result;
  }

  /// A list of dicts; before 0.3.17 one dict.
  void read_shapes(NodeId id, std::vector<std::vector<NamedShape>>& groups) const {
    if (!is_set(id)) return;
    if (mapping(id)) return groups.push_back(shapes(id));
    for (NodeId const group : items(id)) groups.push_back(shapes(group));
  }

  // --- states ---------------------------------------------------------------------------------

  /// An int, or an enumeration that is called with one.
  std::int64_t stage_of(NodeId state) const {
    NodeId id = document_.find(state, "zero_stage");
    if (id == no_node) return 0;
    if (document_.at(id).kind == Kind::reduce) {
      std::vector<NodeId> const arguments = items(document_.at(id).arguments);
      if (arguments.size() == 1) id = arguments.front();
    }
    return document_.at(id).kind == Kind::integer ? document_.at(id).integer : 0;
  }

  /// partition_count: a number, or one for each group.
  Index ranks_of(NodeId state) const {
    NodeId id = document_.find(state, "partition_count");
    if (id == no_node) return 0;
    std::vector<NodeId> const list = items(id);
    for (NodeId const one : list)
      if (document_.at(one).integer != document_.at(list.front()).integer)
        refuse(
            "'partition_count' differs between groups: experts of DeepSpeed-MoE are among them, "
            "which this version cannot read. Save the model as a Hugging Face folder from the "
            "training program, and convert that");
    if (!list.empty()) id = list.front();
    return document_.at(id).kind == Kind::integer ? document_.at(id).integer : 0;
  }

  /// The state of group g: under its number in torch's own dict, or the g-th of a list.
  NodeId state_of(NodeId base, std::size_t group) const {
    if (std::vector<NodeId> const list = items(base); group < list.size()) return list[group];
    NodeId const states = base == no_node ? no_node : document_.find(base, "state");
    if (states == no_node || document_.at(states).kind != Kind::dict) return no_node;
    auto const& pairs = document_.at(states).items;
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2)
      if (document_.at(pairs[i]).kind == Kind::integer &&
          document_.at(pairs[i]).integer == static_cast<std::int64_t>(group))
        return pairs[i + 1];
    return no_node;
  }

  void add_groups(OptimizerStates& found, NodeId masters, NodeId base, NodeId slices,
                  NodeId state) {
    std::vector<NodeId> const list = items(masters);
    if (list.empty())
      refuse(
          "holds no FP32 weights of a ZeRO optimizer. States that were offloaded to NVMe are "
          "in other files: save the checkpoint without offloading");
    std::vector<NodeId> const mappings = items(slices);
    for (std::size_t g = 0; g < list.size(); ++g) {
      StateGroup group;
      if (!is_tensor(list[g]))
        refuse(fmt::format("the FP32 weights of group {} are not a tensor. Restore the file", g));
      group.slots.push_back(tensor(list[g], std::string(master_word)));
      NodeId const states = state_of(base, g);
      if (states != no_node) add_states(group, states, g);
      if (!items(base).empty() && group.step.empty() && !group.steps)
        add_step(group, document_.find(state, "base_optimizer_state_step"));
      if (g < mappings.size()) add_slices(group, mappings[g]);
      found.groups.push_back(std::move(group));
    }
    if (base != no_node && mapping(base)) add_settings(found, document_.find(base, "param_groups"));
  }

  void add_states(StateGroup& group, NodeId states, std::size_t number) {
    for (auto const& [key, value] : document_.members(states)) {
      if (key == "step") {
        add_step(group, value);
        continue;
      }
      if (!is_tensor(value)) continue;
      FileTensor one = tensor(value, key);
      if (one.shape.size() != 1)
        refuse(fmt::format(
            "'{}' of group {} has the shape ({}), expected a vector. State of this optimizer cannot "
            "be resharded: set source.optimizer = \"drop\"",
            key, number, fmt::join(one.shape, ", ")));
      group.slots.push_back(std::move(one));
    }
  }

  /// A float32 tensor with one element, or a number.
  void add_step(StateGroup& group, NodeId value) {
    if (value == no_node) return;
    Node const& node = document_.at(value);
    if (node.kind == Kind::integer) group.steps = static_cast<double>(node.integer);
    if (node.kind == Kind::real) group.steps = node.real;
    if (node.kind != Kind::tensor) return;
    FileTensor step = tensor(value, "step");
    float number = 0;
    if (step.dtype != DType::f32 || step.size_bytes != sizeof number)
      refuse(
          fmt::format("'step' is a tensor of {} bytes in {}, expected one F32 element. Restore the "
                      "file",
                      step.size_bytes, name(step.dtype)));
    file_.read_at(step.offset_bytes, std::as_writable_bytes(std::span(&number, 1)));
    group.steps = number;
    step.shape.clear();
    step.strides.clear();
    group.step.push_back(std::move(step));
  }

  void add_slices(StateGroup& group, NodeId mapping_of_names) {
    group.has_slices = true;
    for (auto const& [name, value] : document_.members(mapping_of_names)) {
      Slice slice{name, integer(value, "start", -1), integer(value, "numel", -1)};
      if (slice.at < 0 || slice.elements < 0)
        refuse(
            fmt::format("the fragment of '{}' has no start or no numel. Restore the file", name));
      group.slices.push_back(std::move(slice));
    }
  }

  void add_settings(OptimizerStates& found, NodeId groups) {
    if (items(groups).empty()) return;
    Document settings;
    settings.root = settings.add_list();
    for (NodeId const group : items(groups)) {
      NodeId const copy = settings.add_copy(document_, group);
      settings.at(settings.root).items.push_back(copy);
    }
    if (settings.tensors.empty()) found.settings = pickle::dump(settings);
  }

  void note_records(OptimizerStates& found) const {
    std::vector<FileTensor const*> tensors;
    for (StateGroup const& group : found.groups)
      for (FileTensor const& one : group.slots) tensors.push_back(&one);
    found.records = megatron::records_with(torch_, tensors);
  }

  File const& file_;
  TorchFile torch_;
  Document const& document_;
  std::string path_;
};

}  // namespace

ModelStates read_model_states(File const& file) { return Reader(file).model(); }
OptimizerStates read_optimizer_states(File const& file) { return Reader(file).optimizer(); }
OptimizerStates read_universal_file(File const& file, std::string const& slot) {
  return Reader(file).universal(slot);
}
OptimizerStates read_universal_settings(File const& file) {
  return Reader(file).universal_settings();
}

}  // namespace reshard::deepspeed
