#include <algorithm>

#include "core/mapping/model.hpp"

namespace reshard {

AxisId Model::rank_axis(Index rank) {
  std::string name = fmt::format("rank{}", rank);
  int const known = axes_.find(name);
  if (known >= 0) return static_cast<AxisId>(known);
  adapter_ranks_.insert(std::ranges::lower_bound(adapter_ranks_, rank), rank);
  return axes_.add(std::move(name), rank);
}

TensorId Model::add_adapter(TensorId weight, std::string name, std::vector<LogicalAxis> axes,
                            std::vector<bool> const& members) {
  LogicalTensor matrix{std::move(name), axes};
  TensorId const number{narrow<std::uint32_t>(tensors_.size())};
  RESHARD_EXPECT(add_name(matrix.name));
  tensors_.push_back(std::move(matrix));
  exists_.push_back(true);
  if (layer_axis(weight)) limit(number, members);
  return number;
}

}  // namespace reshard
