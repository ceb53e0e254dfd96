#include "core/formats/torch_dist/fsdp_record.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "core/base/files/file.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/megatron/mcore/optimizer_groups.hpp"
#include "core/formats/megatron/state/rank_state.hpp"
#include "core/formats/torch_dist/dist_objects.hpp"
#include "core/formats/torch_dist/state/numbered_states.hpp"

namespace reshard::dcp {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::NodeId;

constexpr std::string_view settings_prefix = "optimizer.param_to_group_meta.";
constexpr std::string_view states_prefix = "optimizer.state.";
constexpr std::string_view wrapper = "module.";
constexpr std::string_view step_ending = ".step";
constexpr std::string_view scheduler_prefix = "opt_param_scheduler.";
constexpr std::array<std::string_view, 5> run_keys = {"args", "checkpoint_version", "iteration",
                                                      "opt_param_scheduler",
                                                      "num_floating_point_operations_so_far"};
/// The longest object that is a setting of a group.
constexpr std::uint64_t largest_setting_bytes = std::uint64_t{1} << 20;

std::string_view without_wrappers(std::string_view name) {
  while (name.starts_with(wrapper)) name.remove_prefix(wrapper.size());
  return name;
}

bool is_true(Document const& document, NodeId value) {
  return value != no_node && document.at(value).kind == Kind::boolean && document.at(value).boolean;
}

/// Assembles the common state from the objects.
class Collector {
 public:
  explicit Collector(Checkpoint const& checkpoint) : checkpoint_(checkpoint) {}

  std::shared_ptr<CommonState> run() {
    document_.root = document_.add_dict();
    for (StoredObject const& object : checkpoint_.stored.objects) {
      if (std::ranges::find(run_keys, object.name) != run_keys.end())
        add(document_.root, object.name, object);
      else if (object.name.starts_with(scheduler_prefix))
        add(scheduler(), object.name.substr(scheduler_prefix.size()), object);
      else if (auto const key = parse_group_setting(object.name))
        settings_[key->parameter].emplace_back(key->field, &object);
      else if (object.name.starts_with(numbered_settings))
        add_numbered(object);
    }
    if (document_.find(document_.root, "args") == no_node) return nullptr;
    add_optimizer();
    auto common = std::make_shared<CommonState>();
    common->file = checkpoint_.place;
    common->root = document_.root;
    common->torch.document = std::move(document_);
    return common;
  }

 private:
  using Settings = std::vector<std::pair<std::string_view, StoredObject const*>>;

  NodeId scheduler() {
    NodeId found = document_.find(document_.root, "opt_param_scheduler");
    if (found == no_node) {
      found = document_.add_dict();
      document_.set(document_.root, "opt_param_scheduler", found);
    }
    return found;
  }

  /// A value with tensors belongs to one rank.
  void add(NodeId dict, std::string const& key, StoredObject const& object) {
    NodeId const value = parsed(range_of(object));
    if (value != no_node) document_.set(dict, key, value);
  }

  FileRange range_of(StoredObject const& object) {
    std::uint32_t const number = object.item.file;
    auto found = files_.find(number);
    if (found == files_.end())
      found = files_.emplace(number, File::open_for_reading(checkpoint_.files[number])).first;
    return {found->second, object.item.offset_bytes, object.item.size_bytes};
  }

  NodeId parsed(FileRange const& range) {
    TorchFile const torch = read_torch_file(range);
    if (!torch.document.tensors.empty()) return no_node;
    return document_.add_copy(torch.document, torch.document.root);
  }

  /// Adds the settings of numbered groups; `params` are the numbers of their members.
  void add_numbered(StoredObject const& object) {
    std::string_view const rest = std::string_view(object.name).substr(numbered_settings.size());
    std::size_t const dot = std::min(rest.find('.'), rest.size());
    auto const number = parse_numbers(rest.substr(0, dot));
    if (number && dot < rest.size() && rest.substr(dot + 1) != "params")
      numbered_[number->front()].emplace_back(rest.substr(dot + 1), &object);
  }

  /// Equal objects are parsed once: parameters of one group have equal settings.
  NodeId setting(StoredObject const& object) {
    if (object.item.size_bytes > largest_setting_bytes)
      fail(ErrorKind::source,
           "{}: '{}' has {} bytes, more than a setting of a parameter group can have. The file is "
           "damaged: restore it, or set source.optimizer = \"drop\".",
           checkpoint_.place, object.name, object.item.size_bytes);
    FileRange const range = range_of(object);
    std::string bytes(static_cast<std::size_t>(range.size_bytes()), '\0');
    range.read_at(0, std::as_writable_bytes(std::span(bytes)));
    auto const known = parsed_.find(bytes);
    if (known != parsed_.end()) return known->second;
    NodeId const value = parsed(range);
    parsed_.emplace(std::move(bytes), value);
    return value;
  }

  NodeId group_of(Settings const& fields) {
    NodeId const group = document_.add_dict();
    for (auto const& [field, object] : fields)
      if (NodeId const value = setting(*object); value != no_node)
        document_.set(group, field, value);
    return group;
  }

  /// As the plain optimizer of torch_dist has them.
  void add_numbered_groups() {
    NodeId const groups = document_.add_list();
    for (auto const& [number, fields] : numbered_) {
      NodeId const group = group_of(fields);
      document_.at(groups).items.push_back(group);
    }
    NodeId const optimizer = optimizer_of(groups);
    document_.erase(optimizer, "param_state_sharding_type");
    document_.set(document_.root, "optimizer", optimizer);
  }

  void add_optimizer() {
    if (!numbered_.empty()) return add_numbered_groups();
    std::array<NodeId, 2> chains{no_node, no_node};
    std::set<std::vector<std::pair<std::string_view, NodeId>>> seen;
    std::optional<double> const step = torch_step();
    for (auto const& [parameter, fields] : settings_) {
      std::vector<std::pair<std::string_view, NodeId>> group;
      for (auto const& [field, object] : fields) group.emplace_back(field, setting(*object));
      auto sorted = group;
      std::ranges::sort(sorted);
      if (!seen.insert(std::move(sorted)).second) continue;
      NodeId const dict = document_.add_dict();
      for (auto const& [field, value] : group)
        if (value != no_node) document_.set(dict, field, value);
      if (step) document_.set(dict, "step", document_.add_real(*step));
      std::size_t const chain = is_true(document_, document_.find(dict, "is_expert_parallel"));
      NodeId const one = optimizer_of(document_.add_list({dict}));
      if (chains[chain] == no_node)
        chains[chain] = one;
      else
        add_lacking_groups(document_, chains[chain], one,
                           checkpoint_.place + ": '" + std::string(parameter) + "'");
    }
    if (chains[0] == no_node) return;
    for (NodeId const chain : chains)
      if (chain != no_node) sort_groups(groups_of(document_, chain));
    NodeId all = chains[0];
    if (chains[1] != no_node) {
      all = document_.add_dict();
      NodeId const zero = document_.add_int(0);
      NodeId const one = document_.add_int(1);
      document_.at(all).items = {zero, chains[0], one, chains[1]};
    }
    document_.set(document_.root, "optimizer", all);
  }

  /// As Megatron has them: those whose weights decay come first.
  void sort_groups(NodeId groups) {
    std::ranges::stable_partition(document_.at(groups).items, [&](NodeId group) {
      return megatron::group_decays(document_, group);
    });
  }

  NodeId optimizer_of(NodeId groups) {
    NodeId const inner = document_.add_dict();
    document_.set(inner, "param_groups", groups);
    NodeId const result = document_.add_dict();
    document_.set(result, "optimizer", inner);
    document_.set(result, "param_state_sharding_type", document_.add_string("fully_reshardable"));
    return result;
  }

  std::optional<double> torch_step() {
    std::optional<double> found;
    for (StoredTensor const& tensor : checkpoint_.stored.tensors) {
      if (!is_step_key(tensor.name) || !tensor.shape.empty() || tensor.dtype != DType::f32)
        continue;
      float value = 0;
      std::uint32_t const file = checkpoint_.stored.chunks[tensor.first_chunk].item.file;
      File::open_for_reading(checkpoint_.files[file])
          .read_at(checkpoint_.stored.payload_offset_bytes(tensor.first_chunk),
                   std::as_writable_bytes(std::span(&value, 1)));
      if (found && *found != double{value})
        fail(ErrorKind::source,
             "{}: '{}' is {}, and another parameter is at step {}. The files are of two saves: "
             "restore those of one.",
             checkpoint_.place, tensor.name, value, *found);
      found = value;
    }
    return found;
  }

  Checkpoint const& checkpoint_;
  Document document_;
  std::map<std::uint32_t, File> files_;
  std::map<std::string_view, Settings> settings_;
  std::map<Index, Settings> numbered_;
  std::map<std::string, NodeId> parsed_;
};

}  // namespace

std::optional<GroupSettingKey> parse_group_setting(std::string_view key) {
  std::size_t const dot = key.rfind('.');
  if (!key.starts_with(settings_prefix) || dot <= settings_prefix.size()) return std::nullopt;
  std::string_view const parameter =
      key.substr(settings_prefix.size(), dot - settings_prefix.size());
  return GroupSettingKey{without_wrappers(parameter), key.substr(dot + 1)};
}

std::string group_setting_key(std::string_view parameter, std::string_view field) {
  return fmt::format("{}module.module.module.{}.{}", settings_prefix, parameter, field);
}

bool is_step_key(std::string_view key) {
  return key.starts_with(states_prefix) && key.ends_with(step_ending);
}

std::shared_ptr<CommonState> read_fsdp_common(Checkpoint const& checkpoint) {
  return Collector(checkpoint).run();
}

}  // namespace reshard::dcp
