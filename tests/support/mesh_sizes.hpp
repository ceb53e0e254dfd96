#pragma once

#include <array>
#include <vector>

#include "core/layout/mesh.hpp"

namespace reshard::test {

/// A mesh of the usual five axes in few letters.
struct MeshSizes {
  int tp = 1;
  int pp = 1;
  int vpp = 1;
  int ep = 1;
  int etp = 1;

  Mesh mesh() const {
    return Mesh({{"tp", tp}, {"pp", pp}, {"vpp", vpp}, {"ep", ep}, {"etp", etp}});
  }
  operator Mesh() const { return mesh(); }

  /// The places of one pipeline rank.
  std::vector<MeshPlace> places() const {
    std::array<MeshGrid, 2> const grids = {MeshGrid{"tp"}, MeshGrid{"ep", "etp"}};
    std::vector<MeshPlace> result;
    for (MeshPlace const& at : folded_places(Mesh({{"tp", tp}, {"ep", ep}, {"etp", etp}}), grids))
      result.push_back(mesh().at({{"tp", at[0]}, {"ep", at[1]}, {"etp", at[2]}}));
    return result;
  }
};

}  // namespace reshard::test
