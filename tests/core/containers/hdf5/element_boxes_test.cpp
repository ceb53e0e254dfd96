#include "core/containers/hdf5/element_boxes.hpp"

#include <random>

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard::hdf5 {
namespace {

/// The flat places of a box's elements, in its own row-major order.
std::vector<std::uint64_t> places_of(ElementBox const& box,
                                     std::vector<std::uint64_t> const& extents) {
  std::vector<std::uint64_t> places = {0};
  for (std::size_t d = 0; d < extents.size(); ++d) {
    std::vector<std::uint64_t> next;
    for (std::uint64_t const outer : places)
      for (std::uint64_t i = 0; i < box.count[d]; ++i)
        next.push_back(outer * extents[d] + box.start[d] + i);
    places = std::move(next);
  }
  return places;
}

TEST(ElementBoxes, AreTheRangeInOrder) {
  std::mt19937_64 random(7);
  auto const below = [&](std::uint64_t bound) { return random() % bound; };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::uint64_t> extents(1 + below(5));
    std::uint64_t volume = 1;
    for (std::uint64_t& extent : extents) volume *= extent = 1 + below(5);
    std::uint64_t const first = below(volume);
    std::uint64_t const elements = 1 + below(volume - first);
    std::vector<ElementBox> const boxes = element_boxes(extents, first, elements);
    EXPECT_LE(boxes.size(), 2 * extents.size() - 1);
    std::uint64_t next = first;
    for (ElementBox const& box : boxes)
      for (std::uint64_t const place : places_of(box, extents)) EXPECT_EQ(place, next++);
    EXPECT_EQ(next, first + elements);
  }
}

TEST(ElementBoxes, OfWholeRowsAreOne) {
  std::vector<std::uint64_t> const extents = {7, 3, 4};
  EXPECT_EQ(element_boxes(extents, 0, 84).size(), 1U);
  EXPECT_EQ(element_boxes(extents, 24, 36).size(), 1U);
  EXPECT_EQ(element_boxes(extents, 1, 82).size(), 5U);
}

TEST(ElementBoxes, OfAScalarIsOneWithoutDimensions) {
  std::vector<ElementBox> const boxes = element_boxes({}, 0, 1);
  ASSERT_EQ(boxes.size(), 1U);
  EXPECT_TRUE(boxes[0].start.empty() && boxes[0].count.empty());
}

TEST(ElementBoxes, BeyondTheArrayAreRefused) {
  std::vector<std::uint64_t> const extents = {2, 3};
  EXPECT_THROW(element_boxes(extents, 5, 2), Error);
}

}  // namespace
}  // namespace reshard::hdf5
