#include "pipeline/publication/shared_edges.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "stages/write/edge_bytes.hpp"

namespace reshard {
namespace {

/// Cells of which each writes the next bytes of so many files.
Plan plan_of(std::uint32_t files, std::uint64_t cells) {
  constexpr std::uint64_t run_bytes = 100;
  Plan plan;
  for (std::uint64_t c = 0; c < cells; ++c) {
    CellShape cell;
    cell.source_bytes = run_bytes;
    cell.target_bytes = cell.staging_bytes = files * run_bytes;
    std::vector<Region> regions;
    for (std::uint32_t file = 0; file < files; ++file)
      regions.push_back({0, file, c * run_bytes, c * run_bytes, run_bytes, 0, 0});
    plan.add(cell, regions);
  }
  return plan;
}

/// How many bytes are kept back of what these cells write to a file.
std::uint64_t kept_of(EdgeBytes& edges, CellRange cells, std::uint32_t file) {
  std::vector<std::byte> const staging(100 * cells.size());
  std::vector<Extent> const extents{{file, 100 * cells.begin, staging.size(), 0}};
  std::uint64_t now = 0;
  for (Extent const& extent : edges.keep(extents, staging.data(), cells)) now += extent.bytes;
  return staging.size() - now;
}

TEST(FindEdges, OfPartsAreKnownToEveryRank) {
  Comm const comm = Comm::world();
  if (comm.size() == 1) GTEST_SKIP() << "one rank has one part";
  Plan const plan = plan_of(2, 800);  // 40,000 bytes of each rank in each file
  RankParts const parts(plan, comm.size(), {.least_weight = 1});
  ASSERT_FALSE(parts.are_whole());
  auto edges = find_edges(plan, parts, comm);
  ASSERT_TRUE(edges);
  EXPECT_EQ(kept_of(*edges, parts.cells(0), 0), 0U) << "no part is lower";
  for (std::size_t part = 1; part < parts.count(); ++part) {
    std::uint64_t const begin = 100 * parts.cells(part).begin;
    std::uint64_t const next_page = begin / 4096 * 4096 + (begin % 4096 == 0 ? 0 : 4096);
    EXPECT_EQ(kept_of(*edges, parts.cells(part), 1),
              std::min(next_page - begin, 100 * parts.cells(part).size()))
        << part;
  }
}

TEST(FindEdges, WherePartsShareTooManyPagesNoneAreHandedOut) {
  Comm const comm = Comm::world();
  if (comm.size() == 1) GTEST_SKIP() << "one rank has one part";
  Plan const plan = plan_of(200, 8 * static_cast<std::uint64_t>(comm.size()));
  RankParts const parts(plan, comm.size(), {.most_of_rank = 8, .least_weight = 1});
  ASSERT_FALSE(parts.are_whole());
  EXPECT_FALSE(find_edges(plan, parts, comm)) << "all write the first page of each file";
}

/// However much that is in all.
TEST(GatheredEdges, AreThoseThatARankWants) {
  Comm const comm = Comm::world();
  for (std::uint64_t const bytes : {std::uint64_t{5}, std::uint64_t{22} << 20}) {
    EdgeBytes edges({{0, 0, UINT64_MAX}, {1, 0, UINT64_MAX}});
    std::vector<std::byte> const staging(bytes, static_cast<std::byte>(1 + comm.rank()));
    auto const at = static_cast<std::uint64_t>(comm.rank()) * bytes;
    std::vector<Extent> const extents{{0, at, bytes, 0}, {1, at, bytes / 2, 0}};
    EXPECT_TRUE(edges.keep(extents, staging.data()).empty());
    auto const wanted = static_cast<std::uint32_t>(comm.rank() % 2);
    auto const gathered = gathered_edges(
        &edges, 2, [&](std::uint32_t file) { return file == wanted; }, comm);
    EXPECT_TRUE(gathered[1 - wanted].empty());
    ASSERT_EQ(gathered[wanted].size(), static_cast<std::size_t>(comm.size()));
    for (int rank = 0; rank < comm.size(); ++rank) {
      FileSegment const& segment = gathered[wanted][static_cast<std::size_t>(rank)];
      EXPECT_EQ(segment.offset_bytes, static_cast<std::uint64_t>(rank) * bytes);
      EXPECT_TRUE(segment.bytes ==
                  std::string(wanted == 0 ? bytes : bytes / 2, static_cast<char>(1 + rank)));
    }
    comm.barrier();
  }
}

}  // namespace
}  // namespace reshard
