#include "core/formats/dcp/grid_files.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace reshard::dcp {
namespace {

/// Without a grid of its own a target's files are about so large.
constexpr std::uint64_t usual_file_bytes = std::uint64_t{4} << 30;

using AllBoxes = std::vector<std::vector<TargetBox>>;

void spread(AllBoxes& all, std::size_t files) {
  for (auto& boxes : all)
    for (std::size_t i = 0; i < boxes.size(); ++i)
      boxes[i].file = narrow<std::uint32_t>(i * std::max(files, boxes.size()) / boxes.size());
}

void fill(AllBoxes& all, std::span<GridTensor const> tensors) {
  std::uint64_t bytes = 0;
  for (std::size_t t = 0; t < all.size(); ++t) {
    for (TargetBox& box : all[t]) box.file = narrow<std::uint32_t>(bytes / usual_file_bytes);
    Index const elements = checked_volume(tensors[t].shape, ErrorKind::source, tensors[t].key);
    bytes += static_cast<std::uint64_t>(elements) *
             static_cast<std::uint64_t>(bits(tensors[t].dtype)) / 8;
  }
}

}  // namespace

FormatOptions<TargetOptions> target_options() {
  std::vector<FormatId> const here = {FormatId::dcp};
  return {
      {here, keys::choice(
                 "chunks", &TargetOptions::chunks, {"source", "whole", "ranks", "mesh"},
                 "DCP only: how tensors are split into chunks. \"source\": as in the source; "
                 "\"whole\": not at all; \"ranks\": rows over N ranks; \"mesh\": by placements.")},
      {here, keys::number("ranks", &TargetOptions::ranks, 1, most_ranks,
                          "With chunks = \"ranks\": the number of ranks.")},
      {here, keys::text("mesh", &TargetOptions::mesh,
                        "With chunks = \"mesh\": the axes of the device mesh, such as "
                        "\"dp=4 tp=2\".")},
      {here, keys::text("placements", &TargetOptions::placements,
                        "With chunks = \"mesh\": for patterns of keys, one placement per mesh "
                        "axis; the first matching pattern is used:\n"
                        "\"hc_head.*: R R; *.experts.*: S0 S0; *: S0 R\". R replicates, S0 shards "
                        "dimension 0, _S(0, 2) is strided.")},
      {here, keys::text("prefix", &TargetOptions::prefix,
                        "DCP only: a prefix added to every key, such as \"model.\".")},
      {here, keys::text("map", &TargetOptions::map,
                        "DCP only: the map whose names the tensors get, such as "
                        "\"torchtitan_qwen3\"; \"\" keeps those of the source.")},
  };
}

ChunkGrid grid_of(TargetOptions const& options) {
  ChunkGrid grid{options.chunks, options.ranks, {}, {}};
  if (grid.kind != ChunkGrid::Kind::mesh) return grid;
  try {
    grid.mesh = parse_mesh(options.mesh);
  } catch (Error const& error) {
    throw Error(ErrorKind::usage,
                fmt::format("[target] mesh = \"{}\": {}", options.mesh, error.sentence()));
  }
  grid.rules = parse_placement_rules(options.placements);
  return grid;
}

std::vector<std::vector<TargetBox>> boxes_in_files(ChunkGrid const& grid,
                                                   std::span<GridTensor const> tensors) {
  AllBoxes all;
  std::size_t most = 1;
  for (GridTensor const& tensor : tensors) {
    all.emplace_back();
    for (TensorBox& box : grid_boxes(grid, tensor.key, tensor.shape))
      all.back().push_back({std::move(box), {}, 0});
    most = std::max(most, all.back().size());
  }
  if (grid.kind == ChunkGrid::Kind::whole)
    fill(all, tensors);
  else
    spread(all, grid.kind == ChunkGrid::Kind::ranks ? static_cast<std::size_t>(grid.ranks) : most);
  return all;
}

void warn_of_idle_rules(ChunkGrid const& grid, std::span<GridTensor const> tensors,
                        std::vector<std::string>& warnings) {
  if (grid.kind != ChunkGrid::Kind::mesh) return;
  std::vector<std::string> keys;
  for (GridTensor const& tensor : tensors) keys.push_back(tensor.key);
  for (std::string const& pattern : idle_rules(grid, keys))
    warnings.push_back(fmt::format("target.placements: the rule '{}' applies to no key", pattern));
}

}  // namespace reshard::dcp
