#include "core/plan/cell_shapes.hpp"

#include <utility>

#include "core/base/integers.hpp"

namespace reshard {
namespace {

/// Puts places into the plan in the stead of numbers of files, and shifts offsets to them.
std::vector<Region> apart(std::span<Region const> regions, std::vector<FilePlace>& places) {
  std::vector<Region> shaped(regions.begin(), regions.end());
  for (std::uint32_t number = 0; Region & region : shaped) {
    places.push_back({region.src_offset_bytes, region.src_file});
    places.push_back({region.dst_offset_bytes, region.to});
    region.src_file = number++;
    region.to = number++;
    region.src_offset_bytes = region.dst_offset_bytes = 0;
  }
  return shaped;
}

}  // namespace

std::vector<Region> Plan::regions_of(Cell const& cell) const {
  CellShape const& shape = shapes[cell.shape];
  std::vector<Region> regions;
  regions.reserve(shape.region_count);
  FilePlace const* const source = places.data() + cell.first_source;
  FilePlace const* const target = places.data() + cell.first_target;
  for (std::uint32_t r = 0; r < shape.region_count; ++r)
    regions.push_back(placed(shape_regions[shape.first_region + r], source, target));
  return regions;
}

Region Plan::first_region_of(Cell const& cell) const {
  return placed(shape_regions[shapes[cell.shape].first_region], places.data() + cell.first_source,
                places.data() + cell.first_target);
}

std::vector<DigestRegion> Plan::digests_of(Cell const& cell) const {
  CellShape const& shape = shapes[cell.shape];
  auto const first = shape_digests.begin() + shape.first_digest;
  std::vector<DigestRegion> digests(first, first + shape.digest_count);
  for (DigestRegion& digest : digests) {
    FilePlace const& from = places[cell.first_source + digest.src_file];
    digest.src_file = from.file;
    digest.src_offset_bytes += from.offset_bytes;
    if (digest.to == DigestId::none) continue;
    digest.to = cell.digest;
    digest.dst_offset_bytes += cell.digest_bytes;
  }
  return digests;
}

DigestId Plan::digest_of(Cell const& cell) const {
  CellShape const& shape = shapes[cell.shape];
  bool const brings =
      shape.digest_count > 0 && shape_digests[shape.first_digest].to != DigestId::none;
  return brings ? cell.digest : DigestId::none;
}

void Plan::add(Cell cell, std::span<Region const> regions, std::span<DigestRegion const> digests) {
  cell.shape = narrow<std::uint32_t>(shapes.size());
  cell.first_source = cell.first_target = narrow<std::uint32_t>(places.size());
  shapes.push_back(
      {narrow<std::uint32_t>(shape_regions.size()), narrow<std::uint32_t>(regions.size()),
       narrow<std::uint32_t>(shape_digests.size()), narrow<std::uint32_t>(digests.size())});
  std::vector<Region> const shaped = apart(regions, places);
  shape_regions.insert(shape_regions.end(), shaped.begin(), shaped.end());
  for (DigestRegion digest : digests) {
    places.push_back({digest.src_offset_bytes, digest.src_file});
    digest.src_file = narrow<std::uint32_t>(places.size() - 1 - cell.first_source);
    digest.src_offset_bytes = 0;
    if (digest.to != DigestId::none) {
      RESHARD_EXPECT(cell.digest == DigestId::none || cell.digest == digest.to);
      cell.digest = std::exchange(digest.to, DigestId{0});
    }
    shape_digests.push_back(digest);
  }
  cells.push_back(cell);
}

}  // namespace reshard
