#include "core/layout/mesh.hpp"

#include <algorithm>
#include <numeric>

#include "core/base/error.hpp"

namespace reshard {
namespace {

// The ranks under the grids are walked one by one; no machine has more.
constexpr Index most_ranks = Index{1} << 24;

/// "tp = 2, ep = 4 and etp = 1"
std::string sizes_text(Mesh const& mesh) {
  std::string text;
  std::size_t left = mesh.axes().size();
  for (MeshAxis const& axis : mesh.axes()) {
    text += fmt::format("{} = {}", axis.name, axis.size);
    --left;
    text += left > 1 ? ", " : left == 1 ? " and " : "";
  }
  return text;
}

/// One of several grids over the same ranks.
struct FoldedGrid {
  std::vector<std::size_t> axes;  ///< numbers in the mesh
  Index places = 1;
};

FoldedGrid grid_of(Mesh const& mesh, MeshGrid const& names) {
  FoldedGrid grid;
  for (std::string_view const name : names) {
    int const axis = mesh.find(name);
    if (axis < 0) continue;
    grid.axes.push_back(static_cast<std::size_t>(axis));
    grid.places = checked_mul(grid.places, mesh.axes()[grid.axes.back()].size, ErrorKind::usage,
                              "the places of a mesh");
  }
  return grid;
}

Index more_ranks(Mesh const& mesh, Index ranks, Index times) {
  if (times > most_ranks / ranks)
    fail(ErrorKind::usage, "mesh: {} need more than {} ranks. Choose smaller sizes.",
         sizes_text(mesh), most_ranks);
  return ranks * times;
}

/// Counts a place up along these axes, the last one fastest; false when it was the last place.
bool next_place(MeshPlace& place, Mesh const& mesh, std::vector<std::size_t> const& axes) {
  for (std::size_t i = axes.size(); i-- > 0;) {
    if (++place[axes[i]] < mesh.axes()[axes[i]].size) return true;
    place[axes[i]] = 0;
  }
  return false;
}

std::vector<std::size_t> axes_in_no_grid(Mesh const& mesh, std::span<FoldedGrid const> grids) {
  std::vector<std::size_t> free;
  for (std::size_t a = 0; a < mesh.axes().size(); ++a)
    if (std::ranges::none_of(grids, [a](FoldedGrid const& grid) {
          return std::ranges::find(grid.axes, a) != grid.axes.end();
        }))
      free.push_back(a);
  return free;
}

}  // namespace

Mesh::Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].size < 1)
      fail(ErrorKind::usage, "mesh: {} = {} must be at least 1.", axes_[i].name, axes_[i].size);
    if (find(axes_[i].name) != static_cast<int>(i))
      fail(ErrorKind::usage, "mesh: axis '{}' appears twice. Name each axis once.", axes_[i].name);
  }
}

int Mesh::find(std::string_view axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == axis) return static_cast<int>(i);
  return -1;
}

Index Mesh::size(std::string_view axis) const {
  int const number = find(axis);
  return number < 0 ? 1 : axes_[static_cast<std::size_t>(number)].size;
}

Index Mesh::places() const {
  Index places = 1;
  for (MeshAxis const& axis : axes_)
    places = checked_mul(places, axis.size, ErrorKind::usage, "the places of a mesh");
  return places;
}

MeshPlace Mesh::place(Index number) const {
  MeshPlace place(axes_.size(), 0);
  for (std::size_t i = axes_.size(); i-- > 0;) {
    place[i] = number % axes_[i].size;
    number /= axes_[i].size;
  }
  return place;
}

Index Mesh::number(MeshPlace const& place) const {
  if (place.empty()) return 0;
  RESHARD_EXPECT(place.size() == axes_.size());
  Index number = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) number = number * axes_[i].size + place[i];
  return number;
}

MeshPlace Mesh::at(std::span<MeshCoordinate const> coordinates) const {
  MeshPlace place(axes_.size(), 0);
  for (MeshCoordinate const& coordinate : coordinates) {
    RESHARD_EXPECT(coordinate.at >= 0 && coordinate.at < size(coordinate.axis));
    if (int const axis = find(coordinate.axis); axis >= 0)
      place[static_cast<std::size_t>(axis)] = coordinate.at;
  }
  return place;
}

Index Mesh::coordinate(MeshPlace const& place, std::string_view axis) const {
  RESHARD_EXPECT(place.empty() || place.size() == axes_.size());
  int const number = find(axis);
  return number < 0 || place.empty() ? 0 : place[static_cast<std::size_t>(number)];
}

std::string Mesh::text(std::string_view between) const {
  std::string text;
  for (MeshAxis const& axis : axes_)
    text += fmt::format("{}{} {}", text.empty() ? "" : between, axis.name, axis.size);
  return text;
}

std::vector<MeshPlace> folded_places(Mesh const& mesh, std::span<MeshGrid const> grids) {
  std::vector<FoldedGrid> folded;
  Index ranks = 1;
  for (MeshGrid const& names : grids) {
    folded.push_back(grid_of(mesh, names));
    Index const places = folded.back().places;
    ranks = more_ranks(mesh, ranks, places / std::gcd(ranks, places));
  }
  std::vector<std::size_t> const free = axes_in_no_grid(mesh, folded);
  Index all_ranks = ranks;
  for (std::size_t const axis : free)
    all_ranks = more_ranks(mesh, all_ranks, mesh.axes()[axis].size);
  std::vector<MeshPlace> places;
  MeshPlace place(mesh.axes().size(), 0);
  do {
    for (Index rank = 0; rank < ranks; ++rank) {
      places.push_back(place);
      for (FoldedGrid const& grid : folded) next_place(place, mesh, grid.axes);
    }
  } while (next_place(place, mesh, free));
  std::ranges::sort(places);
  auto const repeated = std::ranges::unique(places);
  places.erase(repeated.begin(), repeated.end());
  return places;
}

}  // namespace reshard
