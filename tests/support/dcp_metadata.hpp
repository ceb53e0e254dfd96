#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/containers/dcp/metadata/metadata.hpp"

/// Metadata made by hand.
namespace reshard {

/// A box and its item, to be added to the last tensor.
inline void add_chunk(dcp::Metadata& metadata, std::vector<Index> const& offsets,
                      std::vector<Index> const& sizes, ItemPlace item) {
  metadata.chunks.push_back(
      {.offsets = metadata.lists.add(offsets), .sizes = metadata.lists.add(sizes), .item = item});
  metadata.tensors.change(metadata.tensors.size() - 1,
                          [](StoredTensor& last) { ++last.chunk_count; });
}

inline void add_tensor(dcp::Metadata& metadata, std::string name, DType dtype,
                       std::vector<Index> shape) {
  auto const first = static_cast<std::uint32_t>(metadata.chunks.size());
  metadata.tensors.push_back({.name = std::move(name),
                              .dtype = dtype,
                              .shape = std::move(shape),
                              .first_chunk = first,
                              .chunk_count = 0});
}

/// The example of docs/formats/dcp.md: one bfloat16 tensor of 2 x 3 in one item.
inline dcp::Metadata golden_metadata() {
  dcp::Metadata metadata;
  metadata.files = {"__0_0.distcp"};
  add_tensor(metadata, "w", DType::bf16, {2, 3});
  add_chunk(metadata, {0, 0}, {2, 3}, {.file = 0, .offset_bytes = 0, .size_bytes = 1577});
  metadata.planner_data.emplace().emplace_back("w", dcp::Path{"w"});
  return metadata;
}

/// `names` matrices cut into `chunks` bands each, over 64 files, as a training job of many ranks
/// leaves them.
inline dcp::Metadata banded_metadata(std::uint32_t names, std::uint32_t chunks) {
  dcp::Metadata metadata;
  std::vector<std::uint64_t> ends(64);
  for (std::size_t i = 0; i < ends.size(); ++i)
    metadata.files.push_back(fmt::format("__{}_0.distcp", i));
  metadata.planner_data.emplace();
  for (std::uint32_t i = 0; i < names; ++i) {
    std::string const name =
        fmt::format("model.decoder.layers.{}.self_attention.linear_qkv.weight_{}", i, i % 7);
    add_tensor(metadata, name, DType::bf16, {Index{chunks} * 128, 4096});
    metadata.planner_data->emplace_back(name, dcp::Path{name});
    for (std::uint32_t j = 0; j < chunks; ++j) {
      std::uint32_t const file = j % 64;
      std::uint64_t const size = 128 * 4096 * 2 + 1577;
      add_chunk(metadata, {Index{j} * 128, 0}, {128, 4096},
                {.file = file, .offset_bytes = ends[file], .size_bytes = size});
      ends[file] += size;
    }
  }
  return metadata;
}

}  // namespace reshard
