#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "core/mapping/model.hpp"

namespace reshard {
namespace {

/// Sets that count layers, whatever these are: other sets ask for them where a config has no list.
constexpr std::array<std::string_view, 3> counting_sets = {"layer.alternating", "layer.regular",
                                                           "layer.sixth"};

}  // namespace

void Model::select(AxisId axis, std::vector<Index> const& kept) {
  std::string const prefix = axes_[axis].name + ".";
  for (auto& [name, members] : sets_) {
    if (!name.starts_with(prefix)) continue;
    std::vector<bool> left;
    for (Index const i : kept) left.push_back(members[static_cast<std::size_t>(i)]);
    members = std::move(left);
  }
  axes_.resize(axis, static_cast<Index>(kept.size()));
  for (std::size_t t = 0; t < tensors_.size(); ++t)
    if (exists_[t] && volume(tensors_[t]) == 0) exists_[t] = false;
}

std::string Model::restate(Model const& other) {
  std::set<AxisId> used;
  for (std::size_t t = 0; t < tensors_.size(); ++t)
    for (LogicalAxis const& axis : tensors_[t].axes)
      if (exists_[t]) used.insert(axis.axis);
  for (AxisId axis = 0; axis < axes_.size(); ++axis) {
    int const its = other.axes_.find(axes_[axis].name);
    Index const size = its < 0 ? 0 : other.axes_[static_cast<AxisId>(its)].size;
    if (size != axes_[axis].size && used.contains(axis)) return axes_[axis].name;
    if (!used.contains(axis)) axes_.resize(axis, size);
  }
  for (auto& [name, members] : sets_) {
    auto const its = other.sets_.find(name);
    if (its == other.sets_.end() || its->second == members) continue;
    auto const axis = axes_.find(std::string_view(name).substr(0, name.find('.')));
    bool const counts = std::ranges::find(counting_sets, name) != counting_sets.end();
    if (!counts && axis >= 0 && used.contains(static_cast<AxisId>(axis))) return name;
    members = its->second;
  }
  lets_ = other.lets_;
  facts_ = other.facts_;
  return {};
}

}  // namespace reshard
