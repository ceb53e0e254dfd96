#include "core/base/tables/shared_shape.hpp"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace reshard {
namespace {

using Sizes = std::vector<Index>;

TEST(SharedShape, IsItsSizes) {
  SharedShape const shape{4, 6};
  EXPECT_EQ(shape, (Sizes{4, 6}));
  EXPECT_EQ(shape, SharedShape(Sizes{4, 6}));
  EXPECT_NE(shape, (SharedShape{6, 4}));
  EXPECT_NE(shape, SharedShape{4});
  EXPECT_EQ(Sizes(shape.begin(), shape.end()), (Sizes{4, 6}));
  EXPECT_EQ(shape.size(), 2U);
  EXPECT_EQ(shape.front(), 4);
  EXPECT_EQ(shape[1], 6);
  EXPECT_EQ(&shape.sizes(), &SharedShape(Sizes{4, 6}).sizes());
  static_assert(sizeof(SharedShape) == 4);
}

TEST(SharedShape, WithoutDimensionsIsTheDefault) {
  EXPECT_EQ(SharedShape(), SharedShape(Sizes{}));
  EXPECT_TRUE(SharedShape(Sizes{}).empty());
  EXPECT_TRUE(SharedShape().sizes().empty());
  EXPECT_NE(SharedShape(), SharedShape{0});
}

TEST(SharedShape, StaysWhereItIsWhileOthersAreMade) {
  SharedShape const first{-1, 1};
  Sizes const* const at = &first.sizes();
  std::vector<SharedShape> others;
  for (Index i = 0; i < 5000; ++i) others.emplace_back(Sizes{-1, i, 7});
  EXPECT_EQ(&first.sizes(), at);
  for (Index i = 0; i < 5000; ++i)
    ASSERT_EQ(others[static_cast<std::size_t>(i)], (Sizes{-1, i, 7}));
}

TEST(SharedShape, MayBeMadeByManyThreads) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (Index i = 0; i < 20'000; ++i) {
        Sizes const sizes{i % 301, -2};
        ASSERT_EQ(SharedShape(sizes), sizes);
      }
    });
}

}  // namespace
}  // namespace reshard
