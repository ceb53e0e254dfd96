#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tables/integers.hpp"

namespace reshard {

/// One parallel axis of a mesh of ranks: "tp" 4.
struct MeshAxis {
  std::string name;
  Index size = 1;
  friend bool operator==(MeshAxis const&, MeshAxis const&) = default;
};

/// A place of a mesh: its coordinate along each axis, in the mesh's order. Empty: the first place,
/// which is 0 along every axis.
using MeshPlace = std::vector<Index>;

/// A coordinate by the name of its axis.
struct MeshCoordinate {
  std::string_view axis;
  Index at = 0;
};

/// Named parallel axes with their sizes, outermost first. Names have no meaning here: the rules of
/// a model map define which axes of a model a mesh axis cuts.
///
///   Mesh{{{"ep", 2}, {"tp", 3}}}: place 4 is {1, 1}, ep 1 and tp 1.
class Mesh {
 public:
  Mesh() = default;
  /// A duplicate name and a size below 1 are Errors of kind usage.
  explicit Mesh(std::vector<MeshAxis> axes);

  std::vector<MeshAxis> const& axes() const { return axes_; }
  /// The number of an axis; -1 if there is none of this name.
  int find(std::string_view axis) const;
  /// 1 for an axis that the mesh lacks: no tensor is cut along it.
  Index size(std::string_view axis) const;

  /// The number of places; an Error of kind usage when it does not fit.
  Index places() const;
  /// The place of a number in [0, places()), row-major: the last axis counts fastest.
  MeshPlace place(Index number) const;
  /// The number of a place.
  Index number(MeshPlace const& place) const;

  /// The place with these coordinates, 0 along the other axes. An axis that the mesh lacks accepts
  /// only 0.
  MeshPlace at(std::span<MeshCoordinate const> coordinates) const;
  MeshPlace at(std::initializer_list<MeshCoordinate> coordinates) const {
    return at(std::span(coordinates.begin(), coordinates.size()));
  }
  /// The coordinate of a place along an axis; 0 for an axis that the mesh lacks.
  Index coordinate(MeshPlace const& place, std::string_view axis) const;

  /// "tp 2 · pp 1", or with another text between the axes.
  std::string text(std::string_view between = " · ") const;

  friend bool operator==(Mesh const&, Mesh const&) = default;

 private:
  std::vector<MeshAxis> axes_;
};

/// Axes that count the ranks of a mesh together, the last one fastest: {"ep", "etp"}.
using MeshGrid = std::vector<std::string_view>;

/// The places of all ranks if several grids lie over the same ranks ("parallel folding"): rank r
/// has place r mod (places of the grid) in each of them. Axes in no grid are independent of these.
/// In row-major order of the mesh, each place once.
///
///   tp 2, ep 4, etp 1 with the grids {tp} and {ep, etp}: (0,0,0) (0,2,0) (1,1,0) (1,3,0).
///
/// More ranks than the limit are an Error of kind usage.
std::vector<MeshPlace> folded_places(Mesh const& mesh, std::span<MeshGrid const> grids);

}  // namespace reshard
