#include "stages/plan/source/facts/draft_layers.hpp"

#include <algorithm>
#include <vector>

namespace reshard {

void limit_to_draft(Model& model) {
  Json const counted = model.value("L");
  Index const layers = counted.integer() == nullptr ? 0 : *counted.integer();
  int const vocab = model.axes().find("vocab");
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    TensorId const id{narrow<std::uint32_t>(t)};
    if (!model.exists(id)) continue;
    auto const axis = model.layer_axis(id);
    if (axis && model.axes()[*axis].name == "depth") continue;
    if (axis) {
      std::vector<bool> members(static_cast<std::size_t>(model.axes()[*axis].size));
      for (std::size_t i = static_cast<std::size_t>(layers); i < members.size(); ++i)
        members[i] = true;
      model.limit(id, members);
    } else {
      model.set_exists(id, std::ranges::any_of(model.tensor(id).axes, [&](LogicalAxis const& one) {
                         return static_cast<int>(one.axis) == vocab;
                       }));
    }
  }
}

}  // namespace reshard
