#include "core/plan/cells/cell_shapes.hpp"

#include <utility>

#include "core/base/tables/integers.hpp"

namespace reshard {
namespace {

/// Puts places into the plan in the stead of numbers of files, and shifts offsets to them.
std::vector<Region> apart(std::span<Region const> regions, FilePlaces& places) {
  std::vector<Region> shaped(regions.begin(), regions.end());
  for (std::uint32_t number = 0; Region & region : shaped) {
    places.add({region.src_offset_bytes, region.src_file});
    places.add({region.dst_offset_bytes, region.to});
    region.src_file = number++;
    region.to = number++;
    region.src_offset_bytes = region.dst_offset_bytes = 0;
  }
  return shaped;
}

Region placed(Plan const& plan, Cell const& cell, Region const& region) {
  return placed(region, plan.places[cell.first_source + region.src_file],
                plan.places[cell.first_target + region.to]);
}

}  // namespace

std::vector<Region> Plan::regions_of(Cell const& cell) const {
  CellShape const& shape = cells.shape(cell.shape);
  std::vector<Region> regions;
  regions.reserve(shape.region_count);
  for (std::uint32_t r = 0; r < shape.region_count; ++r)
    regions.push_back(placed(*this, cell, shape_regions[shape.first_region + r]));
  return regions;
}

Region Plan::first_region_of(Cell const& cell) const {
  return placed(*this, cell, shape_regions[cells.shape(cell.shape).first_region]);
}

std::vector<DigestRegion> Plan::digests_of(Cell const& cell) const {
  CellShape const& shape = cells.shape(cell.shape);
  auto const first = shape_digests.begin() + shape.first_digest;
  std::vector<DigestRegion> digests(first, first + shape.digest_count);
  for (DigestRegion& digest : digests) {
    FilePlace const from = places[cell.first_source + digest.src_file];
    digest.src_file = from.file;
    digest.src_offset_bytes += from.offset_bytes;
    if (digest.to == DigestId::none) continue;
    digest.to = cell.digest;
    digest.dst_offset_bytes += cell.digest_bytes;
  }
  return digests;
}

DigestId Plan::digest_of(Cell const& cell) const {
  CellShape const& shape = cells.shape(cell.shape);
  bool const brings =
      shape.digest_count > 0 && shape_digests[shape.first_digest].to != DigestId::none;
  return brings ? cell.digest : DigestId::none;
}

void Plan::add(CellShape sizes, std::span<Region const> regions,
               std::span<DigestRegion const> digests) {
  auto const first_place = narrow<std::uint32_t>(places.size());
  DigestId to = DigestId::none;
  sizes.first_region = narrow<std::uint32_t>(shape_regions.size());
  sizes.region_count = narrow<std::uint32_t>(regions.size());
  sizes.first_digest = narrow<std::uint32_t>(shape_digests.size());
  sizes.digest_count = narrow<std::uint32_t>(digests.size());
  sizes.source_places = 0;  // regions and digests count from the first place of all
  std::vector<Region> const shaped = apart(regions, places);
  shape_regions.insert(shape_regions.end(), shaped.begin(), shaped.end());
  for (DigestRegion digest : digests) {
    places.add({digest.src_offset_bytes, digest.src_file});
    digest.src_file = narrow<std::uint32_t>(places.size() - 1 - first_place);
    digest.src_offset_bytes = 0;
    if (digest.to != DigestId::none) {
      RESHARD_EXPECT(to == DigestId::none || to == digest.to);
      to = std::exchange(digest.to, DigestId{0});
    }
    shape_digests.push_back(digest);
  }
  cells.add_shapes(std::span(&sizes, 1));
  cells.add(narrow<std::uint32_t>(cells.shapes().size() - 1), first_place, to, 0);
}

}  // namespace reshard
