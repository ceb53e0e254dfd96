#include "core/layout/axis.hpp"

#include <algorithm>

namespace reshard {

AxisId AxisTable::add(std::string name, Index size) {
  RESHARD_EXPECT(size >= 0);
  auto const id = narrow<AxisId>(axes_.size());
  bool const is_new = ids_.emplace(name, id).second;
  RESHARD_EXPECT(is_new);
  axes_.push_back({std::move(name), size});
  return id;
}

int AxisTable::find(std::string_view name) const {
  auto const found = ids_.find(std::string(name));
  return found == ids_.end() ? -1 : narrow<int>(found->second);
}

std::vector<std::string> AxisTable::names() const {
  std::vector<std::string> names;
  names.reserve(axes_.size());
  for (Axis const& axis : axes_) names.push_back(axis.name);
  return names;
}

Index extent(Share const& share) {
  Index total = 0;
  for (Run const& run : share)
    total = checked_add(total, run.end - run.begin, ErrorKind::usage, "extent of a share");
  return total;
}

void Shares::set(AxisId axis, Share share) {
  auto const found = std::ranges::find(shares_, axis, &std::pair<AxisId, Share>::first);
  if (found == shares_.end())
    shares_.emplace_back(axis, std::move(share));
  else
    found->second = std::move(share);
}

Share const* Shares::find(AxisId axis) const {
  auto const found = std::ranges::find(shares_, axis, &std::pair<AxisId, Share>::first);
  return found == shares_.end() ? nullptr : &found->second;
}

Index position_of(Share const& share, Index index) {
  Index before = 0;
  for (Run const& run : share) {
    if (!run.fill && index >= run.begin && index < run.end) return before + index - run.begin;
    before += run.end - run.begin;
  }
  return -1;
}

Index index_at(Share const& share, Index position) {
  for (Run const& run : share) {
    if (position < run.end - run.begin) return run.fill ? -1 : run.begin + position;
    position -= run.end - run.begin;
  }
  return -1;
}

}  // namespace reshard
