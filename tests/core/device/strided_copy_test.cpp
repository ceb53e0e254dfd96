#include "core/device/strided_copy.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/device/device.hpp"
#include "tests/support/expect_refused.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

/// A copy with the memory it needs: `from_first` and `to_first` are where the first run stands.
struct Case {
  std::uint64_t run_bytes = 0;
  std::vector<ByteDim> dims;
  std::size_t from_first = 0;
  std::size_t to_first = 0;
  std::size_t from_size = 0;
  std::size_t to_size = 0;
};

Bytes random_bytes(std::size_t size, std::mt19937_64& random) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

void copy_naively(std::byte const* from, std::byte* to, std::uint64_t run_bytes,
                  std::span<ByteDim const> dims) {
  if (dims.empty()) {
    for (std::uint64_t i = 0; i < run_bytes; ++i) to[i] = from[i];
    return;
  }
  for (std::uint64_t i = 0; i < dims[0].count; ++i)
    copy_naively(from + static_cast<std::int64_t>(i) * dims[0].from_stride,
                 to + static_cast<std::int64_t>(i) * dims[0].to_stride, run_bytes, dims.subspan(1));
}

/// Lays the dimensions out in a random order, each with a random gap and direction, and tells where
/// the first run stands and the extent in bytes.
std::array<std::size_t, 2> lay_out(std::vector<ByteDim>& dims, std::int64_t ByteDim::*stride,
                                   std::uint64_t run_bytes, std::mt19937_64& random) {
  std::vector<std::size_t> order(dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  std::uint64_t extent = run_bytes;
  std::uint64_t first = 0;
  for (std::size_t const d : order) {
    std::uint64_t const gap = random() % 3 == 0 ? random() % 20 : 0;
    std::uint64_t const step = extent + gap;
    bool const backwards = random() % 5 == 0;
    dims[d].*stride =
        backwards ? -static_cast<std::int64_t>(step) : static_cast<std::int64_t>(step);
    if (backwards) first += step * (dims[d].count - 1);
    extent = step * dims[d].count;
  }
  return {first, extent};
}

Case random_case(std::mt19937_64& random) {
  constexpr std::array<std::uint64_t, 15> runs{1,  2,  3,  4,  5,   8,   15, 16,
                                               17, 32, 48, 64, 100, 256, 300};
  Case result;
  result.run_bytes = runs[random() % runs.size()];
  result.dims.resize(random() % 5);
  for (ByteDim& dim : result.dims)
    dim.count = random() % 6 == 0 ? 1 + random() % 70 : 1 + random() % 5;
  auto const [from_first, from_size] =
      lay_out(result.dims, &ByteDim::from_stride, result.run_bytes, random);
  auto const [to_first, to_size] =
      lay_out(result.dims, &ByteDim::to_stride, result.run_bytes, random);
  for (ByteDim& dim : result.dims)
    if (dim.from_stride > 0 && random() % 12 == 0) dim.from_stride = 0;  // a repeated source
  result.from_first = from_first;
  result.to_first = to_first;
  result.from_size = from_size;
  result.to_size = to_size;
  return result;
}

void expect_as_naive(Case const& c, std::mt19937_64& random) {
  Bytes const source = random_bytes(c.from_size, random);
  Bytes expected(c.to_size, std::byte{0xEE});
  Bytes found = expected;
  copy_naively(source.data() + c.from_first, expected.data() + c.to_first, c.run_bytes, c.dims);
  copy_strided(source.data() + c.from_first, found.data() + c.to_first, c.run_bytes, c.dims);
  EXPECT_EQ(found, expected);
}

TEST(StridedCopy, AgreesWithNaiveLoops) {
  for (std::uint64_t seed = 1; seed <= 4000 && !testing::Test::HasFailure(); ++seed) {
    std::mt19937_64 random(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    expect_as_naive(random_case(random), random);
  }
}

TEST(StridedCopy, TransposesLargeMatricesOfEveryElementSize) {
  std::mt19937_64 random(5);
  for (std::uint64_t const bytes : {1U, 2U, 4U, 8U, 16U, 24U}) {
    SCOPED_TRACE(testing::Message() << "element bytes " << bytes);
    std::uint64_t const rows = 131;
    std::uint64_t const columns = 257;
    auto const step = static_cast<std::int64_t>(bytes);
    std::vector<ByteDim> const dims{{rows, 257 * step, step}, {columns, step, 131 * step}};
    expect_as_naive({bytes, dims, 0, 0, rows * columns * bytes, rows * columns * bytes}, random);
  }
}

TEST(StridedCopy, InterleavesRowsOfTwoSources) {
  std::vector<int> const source{0, 1, 2, 3, 4, 5, 6, 7};  // two blocks of two rows of two
  std::vector<int> target(8);
  std::vector<ByteDim> const dims{{2, 16, 8}, {2, 8, 16}};
  copy_strided(reinterpret_cast<std::byte const*>(source.data()),
               reinterpret_cast<std::byte*>(target.data()), 8, dims);
  EXPECT_EQ(target, (std::vector<int>{0, 1, 4, 5, 2, 3, 6, 7}));
}

TEST(StridedCopy, WithoutDimensionsIsOneRun) {
  std::mt19937_64 random(6);
  expect_as_naive({1000, {}, 0, 0, 1000, 1000}, random);
}

TEST(StridedCopy, AnEmptyDimensionCopiesNothing) {
  std::mt19937_64 random(7);
  expect_as_naive({8, {{3, 8, 8}, {0, 8, 8}}, 0, 0, 64, 64}, random);
  expect_as_naive({0, {{3, 8, 8}}, 0, 0, 64, 64}, random);
}

TEST(StridedCopy, PlacesRunsWithTheLastDimensionFastest) {
  std::vector<ByteDim> const dims{{2, 100, 8}, {4, 10, 2}};
  RunPlace const place = place_of_run(5, dims.data(), dims.size());
  EXPECT_EQ(place.from, 110);
  EXPECT_EQ(place.to, 10);
}

TEST(StridedCopy, CountsItsBytes) {
  std::vector<ByteDim> const dims{{2, 100, 8}, {4, 10, 2}};
  EXPECT_EQ(copied_bytes(16, dims), 128U);
  EXPECT_EQ(copied_bytes(16, {}), 16U);
}

TEST(CudaDevice, IsRefusedInABuildWithoutCuda) {
  if (cuda_offer().built) GTEST_SKIP() << "this build has CUDA";
  test::expect_refused(ErrorKind::resources,
                       "GPU 1 cannot be used: this program was built without CUDA",
                       [] { open_cuda_device(1); });
}

}  // namespace
}  // namespace reshard
