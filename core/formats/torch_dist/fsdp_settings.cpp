#include "core/formats/torch_dist/fsdp_settings.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/containers/dcp/directory.hpp"
#include "core/formats/megatron/mcore/optimizer_groups.hpp"
#include "core/formats/megatron/state/buffer_shares.hpp"
#include "core/formats/megatron/state/rank_state.hpp"
#include "core/formats/torch_dist/fsdp_record.hpp"

namespace reshard::dcp {
namespace {

using pickle::Document;
using pickle::no_node;
using pickle::NodeId;

constexpr std::string_view routed_experts = ".mlp.experts.";

class SettingWriter {
 public:
  SettingWriter(megatron::OptimizerSettings const& settings, TargetParts const& parts,
                Json const& args, bool experts_apart)
      : settings_(settings),
        document_(settings.document),
        parts_(parts),
        args_(args),
        experts_apart_(experts_apart) {}

  std::vector<PlacedObject> run() {
    for (StoredName const& name : parts_.side->names(nullptr)) {
      if (name.copy || !has_state(name)) continue;
      NodeId const group = group_of(name);
      std::string const whole = without_half(name.name);
      if (written_.insert(whole).second) add(whole, group);
      if (whole != name.name) add(name.name, group);
    }
    return std::move(result_);
  }

 private:
  bool has_state(StoredName const& name) const {
    Model const& model = *parts_.model;
    auto const tensors = parts_.side->tensors(name.entry);
    for (std::size_t s = 1; s < model.slots().size(); ++s)
      if (std::ranges::all_of(tensors, [&](TensorId tensor) {
            return model.exists(model.in_slot(tensor, SlotId(s)));
          }))
        return true;
    return false;
  }

  /// "linear_fc1.weight7" of "linear_fc1.weight7_w".
  static std::string without_half(std::string const& name) {
    return name.ends_with("_w") || name.ends_with("_v") ? name.substr(0, name.size() - 2) : name;
  }

  NodeId group_of(StoredName const& name) const {
    bool const expert = experts_apart_ && settings_.optimizers.size() > 1 &&
                        name.name.find(routed_experts) != std::string::npos;
    NodeId const groups = groups_of(document_, settings_.optimizers[expert ? 1 : 0]);
    auto const& list = document_.at(groups).items;
    bool const decays = megatron::decays(without_half(name.name), parts_.side->shape(name), args_);
    bool const decoupled =
        megatron::may_be_decoupled(name.name) && std::ranges::any_of(list, [&](NodeId group) {
          return megatron::group_is_decoupled(document_, group);
        });
    auto const fits = [&](NodeId group) {
      return megatron::group_decays(document_, group) == decays &&
             megatron::group_is_decoupled(document_, group) == decoupled;
    };
    auto const found = std::ranges::find_if(list, fits);
    bool const several = found != list.end() && std::any_of(found + 1, list.end(), fits);
    if (found != list.end() && !several) return *found;
    fail(ErrorKind::source,
         "source: the optimizer has {} weight decay, which '{}' of the target {} to. The run had "
         "its own parameter groups, and fsdp_dtensor needs one for each parameter: choose "
         "target.format = \"torch_dist\", or set source.optimizer = \"drop\".",
         fmt::format("{} {}", several ? "several parameter groups" : "no parameter group",
                     decays ? "with" : "without"),
         name.name, several ? "may belong" : "belongs");
  }

  void add(std::string const& parameter, NodeId group) {
    bool has_step = false;
    for (auto const& [field, value] : document_.members(group)) {
      if (field == "params") continue;
      has_step = has_step || field == "step";
      add(parameter, field, value);
    }
    if (has_step) return;
    if (settings_.torch_step)
      add(parameter, "step", bytes_of_step());
    else if (NodeId const known = known_step(); known != no_node)
      add(parameter, "step", known);
  }

  /// The step of any group, as all parameters are at one step.
  NodeId known_step() const {
    for (NodeId const optimizer : settings_.optimizers)
      if (NodeId const groups = groups_of(document_, optimizer); groups != no_node)
        for (NodeId const group : document_.at(groups).items)
          if (NodeId const step = document_.find(group, "step"); step != no_node) return step;
    return no_node;
  }

  std::string bytes_of_step() const {
    Document single;
    single.root = single.add_real(*settings_.torch_step);
    return torch_file_bytes(single, "archive");
  }

  void add(std::string const& parameter, std::string const& field, NodeId value) {
    auto const [known, is_new] = bytes_.try_emplace(value);
    if (is_new) {
      Document single;
      single.root = single.add_copy(document_, value);
      std::vector<pickle::TensorRef> const tensors = single.tensors;
      known->second = torch_file_bytes(single, "archive", [&](std::size_t tensor) {
        return settings_.payloads.at(tensors[tensor].storage.key);
      });
    }
    add(parameter, field, known->second);
  }

  void add(std::string const& parameter, std::string const& field, std::string bytes) {
    result_.push_back({group_setting_key(parameter, field),
                       {std::string("optimizer"), std::string("param_to_group_meta"),
                        "module.module.module." + parameter, field},
                       std::move(bytes)});
  }

  megatron::OptimizerSettings const& settings_;
  Document const& document_;
  TargetParts const& parts_;
  Json const& args_;
  bool experts_apart_;
  std::vector<PlacedObject> result_;
  std::set<std::string> written_;
  std::map<NodeId, std::string> bytes_;
};

}  // namespace

std::vector<PlacedObject> group_setting_objects(megatron::OptimizerSettings const& settings,
                                                TargetParts const& parts, Json const& args,
                                                bool experts_apart) {
  return SettingWriter(settings, parts, args, experts_apart).run();
}

}  // namespace reshard::dcp
