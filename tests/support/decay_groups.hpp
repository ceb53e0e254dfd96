#pragma once

#include "core/containers/torch/pickle/pickle.hpp"

namespace reshard::test {

/// `param_groups` of two groups, of which the first decays.
inline pickle::NodeId add_decay_groups(pickle::Document& document) {
  pickle::NodeId const groups = document.add_list();
  for (double const decay : {1.0, 0.0}) {
    pickle::NodeId const group = document.add_dict();
    document.set(group, "wd_mult", document.add_real(decay));
    document.at(groups).items.push_back(group);
  }
  return groups;
}

}  // namespace reshard::test
