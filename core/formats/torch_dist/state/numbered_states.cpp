#include "core/formats/torch_dist/state/numbered_states.hpp"

#include <algorithm>
#include <map>

#include "core/formats/megatron/mcore/optimizer_groups.hpp"
#include "core/formats/megatron/state/rank_state.hpp"
#include "core/formats/torch_dist/dist_objects.hpp"

namespace reshard::dcp {
namespace {

constexpr std::string_view masters_prefix = "optimizer.fp32_from_fp16_params.";
constexpr std::string_view states_prefix = "optimizer.optimizer.state.";

/// Whether the keys are 0, 1, … without a gap.
template <class Value>
bool counts_up(std::map<Index, Value> const& values) {
  return values.empty() ||
         (values.begin()->first == 0 && values.rbegin()->first == std::ssize(values) - 1);
}

class Numbered {
 public:
  Numbered(Checkpoint const& checkpoint, StoredView& view) : checkpoint_(checkpoint), view_(view) {}

  bool run(std::span<std::size_t const> tensors) {
    for (std::size_t const tensor : tensors)
      if (!sort(tensor)) return false;
    return checkpoint_.chunked.common != nullptr && put();
  }

 private:
  bool sort(std::size_t tensor) {
    std::string_view const key = checkpoint_.stored.tensors.name(tensor).text();
    if (key.starts_with(masters_prefix)) {
      auto const numbers = parse_numbers(key.substr(masters_prefix.size()));
      return numbers && numbers->size() == 2 &&
             masters_[(*numbers)[0]].emplace((*numbers)[1], tensor).second;
    }
    std::size_t const dot = key.rfind('.');
    if (!key.starts_with(states_prefix) || dot < states_prefix.size()) return false;
    auto const numbers =
        parse_numbers(key.substr(states_prefix.size(), dot - states_prefix.size()));
    std::string const slot(key.substr(dot + 1));
    return numbers && numbers->size() == 1 && slot != "step" &&
           states_[numbers->front()].emplace(slot, tensor).second;
  }

  bool put() {
    pickle::Document const& document = checkpoint_.chunked.common->torch.document;
    pickle::NodeId const groups = groups_of(document, settings_of_chain(document, 0));
    if (groups == pickle::no_node || !counts_up(masters_) || !counts_up(states_)) return false;
    auto const& settings = document.at(groups).items;
    if (settings.size() != masters_.size()) return false;
    std::vector<std::string> slots{std::string(megatron::master_slot)};
    for (auto const& [number, states] : states_)
      for (auto const& [slot, tensor] : states)
        if (std::ranges::find(slots, slot) == slots.end()) slots.push_back(slot);
    StateList list{.where = checkpoint_.place, .groups = {}};
    Index next = 0;
    for (auto const& [number, members] : masters_) {
      pickle::NodeId const group = settings[static_cast<std::size_t>(number)];
      list.groups.push_back({megatron::group_decays(document, group),
                             megatron::group_is_decoupled(document, group),
                             {}});
      if (!counts_up(members)) return false;
      for (auto const& [member, master] : members)
        list.groups.back().members.push_back(states_of(next++, master, slots));
    }
    if (next != std::ssize(states_)) return false;
    view_.states = std::move(slots);
    view_.lists.push_back(std::move(list));
    return true;
  }

  std::vector<std::size_t> states_of(Index number, std::size_t master,
                                     std::vector<std::string> const& slots) const {
    std::vector<std::size_t> result(slots.size(), no_tensor);
    result.front() = master;
    auto const states = states_.find(number);
    if (states == states_.end()) return result;
    for (auto const& [slot, tensor] : states->second)
      result[static_cast<std::size_t>(std::ranges::find(slots, slot) - slots.begin())] = tensor;
    return result;
  }

  Checkpoint const& checkpoint_;
  StoredView& view_;
  std::map<Index, std::map<Index, std::size_t>> masters_;  ///< by group and member
  std::map<Index, std::map<std::string, std::size_t>> states_;
};

}  // namespace

bool add_numbered_states(Checkpoint const& checkpoint, std::span<std::size_t const> tensors,
                         StoredView& view) {
  return Numbered(checkpoint, view).run(tensors);
}

}  // namespace reshard::dcp
