#include "core/formats/megatron/mcore/mesh.hpp"

#include <algorithm>
#include <array>

#include "core/base/error.hpp"

namespace reshard::megatron {
namespace {

constexpr std::array<std::string_view, 5> own_axes = {"tp", "pp", "vpp", "ep", "etp"};

bool is_own(std::string_view axis) { return std::ranges::find(own_axes, axis) != own_axes.end(); }

int size_of(Mesh const& mesh, std::string_view axis) { return narrow<int>(mesh.size(axis)); }

}  // namespace

Mesh mesh_of(MeshSizes const& sizes) {
  int const etp = sizes.etp == 0 ? sizes.tp : sizes.etp;
  return Mesh(
      {{"tp", sizes.tp}, {"pp", sizes.pp}, {"vpp", sizes.vpp}, {"ep", sizes.ep}, {"etp", etp}});
}

Mesh mesh_of(std::map<std::string, int, std::less<>> const& sizes) {
  auto const named = [&](std::string_view axis, int absent) {
    auto const found = sizes.find(axis);
    return found == sizes.end() ? absent : found->second;
  };
  MeshSizes const own{named("tp", 1), named("pp", 1), named("vpp", 1), named("ep", 1),
                      named("etp", 0)};
  std::vector<MeshAxis> axes = mesh_of(own).axes();
  for (auto const& [axis, size] : sizes)
    if (!is_own(axis)) axes.push_back({axis, size});
  return Mesh(std::move(axes));
}

std::vector<MeshAxis> further_axes(Mesh const& mesh) {
  std::vector<MeshAxis> further;
  for (MeshAxis const& axis : mesh.axes())
    if (!is_own(axis.name)) further.push_back(axis);
  return further;
}

MeshSizes sizes_of(Mesh const& mesh) {
  return {size_of(mesh, "tp"), size_of(mesh, "pp"), size_of(mesh, "vpp"), size_of(mesh, "ep"),
          size_of(mesh, "etp")};
}

MeshSizes shard_sizes(Mesh const& mesh) {
  for (MeshAxis const& axis : further_axes(mesh))
    if (axis.size > 1)
      fail(
          ErrorKind::usage,
          "[target] layout.{} = {}: the names of mp_rank_* folders have no number for this axis. Leave it out, or choose torch_dist or fsdp_dtensor.",
          axis.name, axis.size);
  return sizes_of(mesh);
}

MeshPlace place_of(Mesh const& mesh, ShardPlace const& shard) {
  return mesh.at(
      {{"tp", shard.tp}, {"pp", shard.pp}, {"ep", shard.ep}, {"etp", shard.tp % mesh.size("etp")}});
}

std::vector<MeshPlace> stage_places(Mesh const& mesh) {
  std::vector<MeshAxis> stage = further_axes(mesh);
  for (std::string_view const axis : {"tp", "ep", "etp"})
    stage.push_back({std::string(axis), mesh.size(axis)});
  Mesh const part(std::move(stage));
  std::array<MeshGrid, 2> const grids = {MeshGrid{"tp"}, MeshGrid{"ep", "etp"}};
  std::vector<MeshPlace> places;
  for (MeshPlace const& at : folded_places(part, grids)) {
    std::vector<MeshCoordinate> coordinates;
    for (std::size_t i = 0; i < at.size(); ++i) coordinates.push_back({part.axes()[i].name, at[i]});
    places.push_back(mesh.at(coordinates));
  }
  return places;
}

std::vector<ShardPlace> shard_places(MeshSizes const& sizes) {
  Mesh const mesh = mesh_of(sizes);
  std::vector<ShardPlace> stage;
  for (MeshPlace const& place : stage_places(mesh))
    stage.push_back({.tp = narrow<int>(mesh.coordinate(place, "tp")),
                     .pp = 0,
                     .ep = narrow<int>(mesh.coordinate(place, "ep"))});
  auto const repeated = std::ranges::unique(stage);
  stage.erase(repeated.begin(), repeated.end());
  std::vector<ShardPlace> places;
  for (int pp = 0; pp < sizes.pp; ++pp)
    for (ShardPlace place : stage) {
      place.pp = pp;
      places.push_back(place);
    }
  return places;
}

Mesh shard_mesh(MeshSizes const& sizes) {
  return Mesh({{"tp", sizes.tp}, {"pp", sizes.pp}, {"ep", sizes.ep}});
}

MeshPlace shard_coordinates(ShardPlace const& shard) { return {shard.tp, shard.pp, shard.ep}; }

std::string layout_text(MeshSizes const& sizes) {
  int const etp = sizes.etp == 0 ? sizes.tp : sizes.etp;
  std::string text = shard_mesh(sizes).text();
  if (sizes.vpp > 1) text += fmt::format(" · vpp {}", sizes.vpp);
  if (etp != sizes.tp) text += fmt::format(" · etp {}", etp);
  return text;
}

}  // namespace reshard::megatron
