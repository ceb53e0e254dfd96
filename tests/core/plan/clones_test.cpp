#include "core/plan/clones.hpp"

#include <map>
#include <random>
#include <utility>

#include <gtest/gtest.h>

namespace reshard {
namespace {

constexpr std::uint64_t block = 4096;
constexpr std::uint64_t kib = 1024;
CloneRules const rules{block, 2};

std::vector<CloneExtent> clonable(std::vector<Region> const& regions,
                                  std::vector<ByteDim> const& dims = {}) {
  return whole_blocks(straight_stretches(regions, dims, rules), rules);
}

TEST(Clones, AWholeTensorAtBlocksIsOneStretch) {
  std::vector<CloneExtent> const expected = {{0, 8192, 3, 4096, 256 * kib}};
  EXPECT_EQ(clonable({{0, 3, 8192, 4096, 256 * kib, 0, 0}}), expected);
}

TEST(Clones, RaggedEndsAreLeft) {
  // Of the target's [4196, 204196) blocks 2 to 48 are whole.
  std::vector<CloneExtent> const expected = {{1, 12288, 0, 8192, 192512}};
  EXPECT_EQ(clonable({{1, 0, 8292, 4196, 200'000, 0, 0}}), expected);
}

TEST(Clones, OffsetsThatDifferByNoWholeBlocksGiveNothing) {
  EXPECT_TRUE(clonable({{0, 0, 8192, 4096 + 64, 1024 * kib, 0, 0}}).empty());
}

TEST(Clones, ShortStretchesAreNotWorthACall) {
  EXPECT_TRUE(clonable({{0, 0, 0, 0, 60 * kib, 0, 0}}).empty());
  EXPECT_EQ(clonable({{0, 0, 0, 0, 64 * kib, 0, 0}}).size(), 1U);
  // After its ragged beginning too little is left.
  EXPECT_TRUE(clonable({{0, 0, 1, 1, 64 * kib, 0, 0}}).empty());
}

TEST(Clones, NeighboursAtBothEndsAreOneStretch) {
  std::vector<CloneExtent> const expected = {{0, 0, 0, 8192, 96 * kib}};
  EXPECT_EQ(clonable({{0, 0, 40 * kib, 8192 + 40 * kib, 56 * kib, 0, 0},
                      {0, 0, 0, 8192, 40 * kib, 0, 0}}),
            expected);
  // At one end only: both are too short.
  EXPECT_TRUE(
      clonable({{0, 0, 0, 8192, 40 * kib, 0, 0}, {0, 0, 44 * kib, 8192 + 40 * kib, 56 * kib, 0, 0}})
          .empty());
  // A border inside a block does not matter.
  EXPECT_EQ(clonable({{0, 0, 0, 0, 100'000, 0, 0}, {0, 0, 100'000, 100'000, 100'000, 0, 0}}).size(),
            1U);
}

TEST(Clones, LongRunsThatAreApartAreClonedOneByOne) {
  std::vector<ByteDim> const dims = {{3, 128 * kib, 256 * kib}};
  std::vector<CloneExtent> const expected = {{0, 0, 0, 0, 64 * kib},
                                             {0, 128 * kib, 0, 256 * kib, 64 * kib},
                                             {0, 256 * kib, 0, 512 * kib, 64 * kib}};
  EXPECT_EQ(clonable({{0, 0, 0, 0, 64 * kib, 0, 1}}, dims), expected);
  EXPECT_TRUE(clonable({{0, 0, 0, 0, 32 * kib, 0, 1}}, dims).empty());
}

TEST(Clones, RunsBetweenEachOtherAreOneStretch) {
  std::vector<ByteDim> const dims = {{4, 48 * kib, 48 * kib}, {4, 48 * kib, 48 * kib}};
  std::vector<CloneExtent> const expected = {{0, 0, 0, 4096, 4 * 48 * kib}};
  EXPECT_EQ(
      clonable({{0, 0, 0, 4096, 32 * kib, 0, 1}, {0, 0, 32 * kib, 4096 + 32 * kib, 16 * kib, 1, 1}},
               dims),
      expected);
}

TEST(Clones, ViewsAreComputed) { EXPECT_TRUE(clonable({{2, 0, 0, 0, 256 * kib, 0, 0}}).empty()); }

TEST(Clones, WithoutABlockSizeThereAreNone) {
  std::vector<CloneExtent> const stretch = {{0, 0, 0, 0, 256 * kib}};
  EXPECT_TRUE(whole_blocks(stretch, CloneRules{}).empty());
}

TEST(Clones, OneSourceForSeveralTargets) {
  EXPECT_EQ(clonable({{0, 0, 0, 0, 128 * kib, 0, 0}, {0, 1, 0, 4096, 128 * kib, 0, 0}}).size(), 2U);
}

TEST(WithoutClones, PartsAreTakenOutOfExtents) {
  std::vector<Extent> const extents = {
      {0, 0, 100, 1000}, {0, 100, 100, 5000}, {1, 0, 300, 0}, {2, 50, 10, 70}};
  std::vector<CloneExtent> const clones = {
      {0, 0, 0, 50, 100}, {0, 0, 1, 100, 50}, {0, 0, 1, 200, 100}};
  std::vector<Extent> const expected = {
      {0, 0, 50, 1000}, {0, 150, 50, 5050}, {1, 0, 100, 0}, {1, 150, 50, 150}, {2, 50, 10, 70}};
  EXPECT_EQ(without_clones(extents, clones), expected);
  EXPECT_EQ(without_clones(extents, {}), extents);
}

/// Where each byte of the target files comes from, in steps: what regions say, byte for byte.
using Origin =
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::pair<std::uint32_t, std::uint64_t>>;
constexpr std::uint64_t step = 512;

Origin origins(std::vector<Region> const& regions) {
  Origin origin;
  for (Region const& region : regions)
    for (std::uint64_t at = 0; at < region.run_bytes; at += step)
      origin[{region.to, region.dst_offset_bytes + at}] = {region.src_file,
                                                           region.src_offset_bytes + at};
  return origin;
}

/// Whether every step of a block comes from the same block of one source file.
bool is_clonable(Origin const& origin, std::uint32_t file, std::uint64_t at,
                 std::pair<std::uint32_t, std::uint64_t>& from) {
  for (std::uint64_t s = 0; s < block; s += step) {
    auto const found = origin.find({file, at + s});
    if (found == origin.end() || found->second.first >= rules.source_files) return false;
    if (s == 0) from = found->second;
    if (found->second != std::pair(from.first, from.second + s) || from.second % block != 0)
      return false;
  }
  return true;
}

/// The same, block by block: neighbours are joined, and short stretches left out.
std::vector<CloneExtent> slow_clones(std::vector<Region> const& regions, std::uint64_t file_bytes) {
  Origin const origin = origins(regions);
  std::vector<CloneExtent> clones;
  for (std::uint32_t file = 0; file < 2; ++file)
    for (std::uint64_t at = 0; at < file_bytes; at += block) {
      std::pair<std::uint32_t, std::uint64_t> from;
      if (!is_clonable(origin, file, at, from)) continue;
      if (!clones.empty() && clones.back().file == file &&
          clones.back().offset_bytes + clones.back().bytes == at &&
          clones.back().from_file == from.first &&
          clones.back().from_bytes + clones.back().bytes == from.second)
        clones.back().bytes += block;
      else
        clones.push_back({from.first, from.second, file, at, block});
    }
  std::erase_if(clones, [](CloneExtent const& c) { return c.bytes < least_clone_bytes; });
  return clones;
}

/// Two target files, filled from the front with stretches of random lengths from random places.
std::vector<Region> random_regions(std::mt19937_64& random, std::uint64_t file_bytes) {
  auto const below = [&](std::uint64_t n) { return random() % n; };
  std::vector<Region> regions;
  for (std::uint32_t file = 0; file < 2; ++file) {
    std::uint64_t next_from = 0;
    for (std::uint64_t at = below(8) * step; at + step < file_bytes;) {
      std::uint64_t const bytes =
          std::min(file_bytes - at, step * (1 + below(below(3) == 0 ? 16 : 600)));
      std::uint64_t const from = below(3) == 0   ? next_from
                                 : below(2) == 0 ? below(100) * block + at % block
                                                 : below(1000) * step;
      regions.push_back({static_cast<std::uint32_t>(below(3)), file, from, at, bytes, 0, 0});
      next_from = from + bytes;
      at += bytes + (below(4) == 0 ? step * below(20) : 0);
    }
  }
  std::shuffle(regions.begin(), regions.end(), random);
  return regions;
}

TEST(Clones, AreThoseOfAnObviousWay) {
  std::mt19937_64 random(7);
  std::size_t found = 0;
  for (int i = 0; i < 60; ++i) {
    auto const regions = random_regions(random, 2U << 20U);
    auto const clones = clonable(regions);
    EXPECT_EQ(clones, slow_clones(regions, 2U << 20U)) << i;
    found += clones.size();
  }
  EXPECT_GT(found, 100U);
}

}  // namespace
}  // namespace reshard
