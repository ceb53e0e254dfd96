#include "stages/write/edge_bytes.hpp"

#include <numeric>

#include <gtest/gtest.h>

namespace reshard {
namespace {

/// Staging bytes that are their own places.
std::vector<std::byte> staging() {
  std::vector<std::byte> bytes(64);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

std::string run(int first, int count) {
  std::string bytes(static_cast<std::size_t>(count), '\0');
  std::iota(bytes.begin(), bytes.end(), static_cast<char>(first));
  return bytes;
}

using Extents = std::vector<Extent>;
using Held = std::vector<HeldBytes>;

TEST(EdgeBytes, KeepsWhatLiesInItsPages) {
  auto const bytes = staging();
  EdgeBytes edges({{0, 10, 20}, {0, 30, 40}, {2, 0, 10}});
  // Before, across both, between, behind; another file at the same places.
  Extents const now = edges.keep(
      Extents{{0, 0, 10, 0}, {0, 15, 20, 10}, {0, 40, 5, 30}, {1, 10, 10, 35}, {2, 8, 4, 45}},
      bytes.data());
  EXPECT_EQ(
      now,
      (Extents{{0, 0, 10, 0}, {0, 20, 10, 15}, {0, 40, 5, 30}, {1, 10, 10, 35}, {2, 10, 2, 47}}));
  EXPECT_EQ(edges.all(),
            (Held{{0, {15, run(10, 5)}}, {0, {30, run(25, 5)}}, {2, {8, run(45, 2)}}}));
}

TEST(EdgeBytes, APageTakesTheMiddleOfAnExtent) {
  auto const bytes = staging();
  EdgeBytes edges({{0, 10, 14}});
  EXPECT_EQ(edges.keep(Extents{{0, 8, 10, 3}}, bytes.data()),
            (Extents{{0, 8, 2, 3}, {0, 14, 4, 9}}));
  EXPECT_EQ(edges.all(), (Held{{0, {10, run(5, 4)}}}));
}

TEST(EdgeBytes, AnExtentInsideAPageIsKeptWhole) {
  auto const bytes = staging();
  EdgeBytes edges({{3, 10, 30}});
  EXPECT_EQ(edges.keep(Extents{{3, 12, 6, 1}, {3, 10, 20, 20}}, bytes.data()), Extents{});
  EXPECT_EQ(edges.all(), (Held{{3, {12, run(1, 6)}}, {3, {10, run(20, 20)}}}));
}

TEST(EdgeBytes, NewOnesAreTakenOnce) {
  auto const bytes = staging();
  EdgeBytes edges({{0, 0, 4}});
  edges.keep(Extents{{0, 0, 2, 0}}, bytes.data());
  EXPECT_EQ(edges.take_new().size(), 1U);
  EXPECT_EQ(edges.take_new().size(), 0U);
  edges.keep(Extents{{0, 2, 2, 2}}, bytes.data());
  EXPECT_EQ(edges.take_new(), (Held{{0, {2, run(2, 2)}}}));
  EXPECT_EQ(edges.all().size(), 2U);
}

TEST(EdgeBytes, EachPartOfTheCellsHasPagesOfItsOwn) {
  auto const bytes = staging();
  EdgeBytes edges = EdgeBytes::of_parts({{{2, 5}, {{0, 0, 4}}}, {{5, 9}, {{0, 4, 8}, {1, 0, 4}}}});
  Extents const written{{0, 0, 8, 0}};
  EXPECT_EQ(edges.keep(written, bytes.data(), {0, 2}), written) << "before all parts";
  EXPECT_EQ(edges.keep(written, bytes.data(), {3, 4}), (Extents{{0, 4, 4, 4}}));
  EXPECT_EQ(edges.keep(written, bytes.data(), {5, 9}), (Extents{{0, 0, 4, 0}}));
  EXPECT_EQ(edges.keep(written, bytes.data(), {9, 10}), written) << "behind them";
  edges.keep(Extents{{1, 2, 6, 8}}, bytes.data(), {8, 9});
  EXPECT_EQ(edges.all(), (Held{{0, {0, run(0, 4)}}, {0, {4, run(4, 4)}}, {1, {2, run(8, 2)}}}));
  EXPECT_EQ(edges.of_file(0).size(), 2U);
  EXPECT_EQ(edges.of_file(1), (std::vector<FileSegment>{{2, run(8, 2)}}));
  EXPECT_TRUE(edges.of_file(2).empty());
}

}  // namespace
}  // namespace reshard
