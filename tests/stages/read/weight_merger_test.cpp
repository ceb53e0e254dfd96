#include "stages/read/weight_merger.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "core/base/error.hpp"
#include "core/quant/rounded.hpp"
#include "stages/read/extent_reader.hpp"
#include "stages/read/view_reader.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

struct World {
  Bytes bytes;
  std::mt19937 random{11};

  /// Random values in F32 or BF16 behind the others; where they begin, and what they are.
  std::uint64_t add(std::size_t count, DType dtype, std::vector<float>& values) {
    std::uint64_t const at = bytes.size();
    values.resize(count);
    for (float& value : values) {
      value = std::uniform_real_distribution<float>(-1, 1)(random);
      auto code = std::bit_cast<std::uint32_t>(value);
      if (dtype == DType::bf16) code = std::uint32_t{quant::bf16_of(code)} << 16U;
      value = std::bit_cast<float>(code);
      std::size_t const size = dtype == DType::bf16 ? 2 : 4;
      bytes.resize(bytes.size() + size);
      if (dtype == DType::bf16) code >>= 16U;
      std::memcpy(bytes.data() + bytes.size() - size, &code, size);
    }
    return at;
  }
};

float merged(float weight, float scale, std::vector<float> const& b, std::vector<float> const& a,
             Index rank, Index columns, Index i, Index j) {
  float volatile sum = 0;
  for (Index k = 0; k < rank; ++k) {
    float const volatile product =
        b[static_cast<std::size_t>(i * rank + k)] * a[static_cast<std::size_t>(k * columns + j)];
    sum = sum + product;
  }
  float const volatile scaled = scale * sum;
  float const volatile result = weight + scaled;
  return result;
}

/// W [rows, columns] in BF16 with A [rank, columns] and B [rows, rank], as peft stores them.
struct Case {
  World world;
  std::vector<float> w, a, b;
  SourceView view;
  Index rows, columns, rank;

  Case(Index rows_, Index columns_, Index rank_, DType factor_dtype)
      : rows(rows_), columns(columns_), rank(rank_) {
    std::vector<float> unused;
    world.add(3, DType::bf16, unused);
    view.kind = ViewKind::merge;
    view.name = "w";
    view.dtype = DType::bf16;
    view.shape = {rows * columns};
    view.stored = {0, world.add(static_cast<std::size_t>(rows * columns), DType::bf16, w),
                   DType::bf16, view.shape};
    LowRankPair pair{"m", rank, 0.7F, {rows, {}}, {columns, {}}};
    std::uint64_t const at_a = world.add(static_cast<std::size_t>(rank * columns), factor_dtype, a);
    std::uint64_t const at_b = world.add(static_cast<std::size_t>(rows * rank), factor_dtype, b);
    pair.a.parts = {{0, at_a, factor_dtype, 0, 0, {{rank, columns, 0, 1}, {columns, 1, 1, 0}}}};
    pair.b.parts = {{0, at_b, factor_dtype, 0, 0, {{rows, rank, 1, 0}, {rank, 1, 0, 1}}}};
    MergedWeight weight;
    weight.pairs = std::make_shared<std::vector<LowRankPair> const>(1, pair);
    weight.parts.push_back({0, 0, 0, 0, {{rows, columns, 1, 0, 0}, {columns, 1, 0, 1, 0}}, {}});
    weight.parts[0].pairs =
        std::make_shared<std::vector<std::uint32_t> const>(std::vector<std::uint32_t>{0});
    view.merged = std::make_shared<MergedWeight const>(std::move(weight));
  }

  std::vector<std::uint16_t> wanted() const {
    std::vector<std::uint16_t> result;
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j)
        result.push_back(quant::bf16_of(std::bit_cast<std::uint32_t>(merged(
            w[static_cast<std::size_t>(i * columns + j)], 0.7F, b, a, rank, columns, i, j))));
    return result;
  }
};

TEST(WeightMerger, GivesTheSameBitsInAnyCut) {
  Case const one(67, 90, 5, DType::f32);
  ScratchFolder const folder("merge");
  FileSet files({folder.file("all", one.world.bytes)}, FileSet::Access::read);
  auto const wanted = one.wanted();
  std::mt19937_64 random(3);
  for (std::uint64_t const most : {std::uint64_t{7}, std::uint64_t{200}, std::uint64_t{6030}}) {
    ReadStats stats;
    std::vector<SourceView> const views{one.view};
    FactorTiles tiles(files, stats);
    KeptScales scales;
    ViewReader reader(files, views, stats, tiles, scales);
    std::vector<std::uint16_t> found(wanted.size());
    for (std::size_t first = 0; first < found.size();) {
      std::size_t const count = std::min<std::size_t>(found.size() - first, 1 + random() % most);
      reader.read(0, 2 * first, std::as_writable_bytes(std::span(found).subspan(first, count)));
      first += count;
    }
    ASSERT_EQ(found, wanted);
  }
}

TEST(WeightMerger, SeveralThreadsGiveTheSameBitsWithTheSameReads) {
  Case const one(1000, 1100, 3, DType::bf16);
  ScratchFolder const folder("merge");
  FileSet files({folder.file("all", one.world.bytes)}, FileSet::Access::read);
  std::vector<SourceView> const views{one.view};
  auto const wanted = one.wanted();
  std::uint64_t const bytes = 2 * wanted.size();
  std::uint64_t calls = 0;
  for (std::size_t const threads : {1U, 3U}) {
    ExtentReader reader(files, views, {}, threads);
    std::vector<std::uint16_t> found(wanted.size());
    std::vector<Extent> const extents{
        {.file = 1, .offset_bytes = 0, .bytes = bytes - 30, .at = 30},
        {.file = 1, .offset_bytes = bytes - 30, .bytes = 30, .at = 0}};
    reader.read(extents, std::as_writable_bytes(std::span(found)).data());
    std::ranges::rotate(found, found.begin() + 15);
    ASSERT_EQ(found, wanted) << threads;
    if (threads == 1) calls = reader.stats().calls;
    EXPECT_EQ(reader.stats().calls, calls);
  }
}

/// With magnitudes (DoRA), and the weights in F32.
struct MagnitudeCase {
  World world;
  std::vector<float> w, a, b, m;
  SourceView view;
  Index rows = 70, columns = 50, rank = 3;

  explicit MagnitudeCase(bool transposed) {
    auto const add = [&](Index count, std::vector<float>& values) {
      return world.add(static_cast<std::size_t>(count), DType::f32, values);
    };
    Index const row_stride = transposed ? 1 : columns;
    Index const column_stride = transposed ? rows : 1;
    view.kind = ViewKind::merge;
    view.name = "w";
    view.dtype = DType::f32;
    view.shape = {rows * columns};
    view.stored = {0, add(rows * columns, w), DType::f32, view.shape};
    LowRankPair pair{"m", rank, 0.7F, {rows, {}}, {columns, {}}};
    std::uint64_t const at_a = add(rank * columns, a);
    std::uint64_t const at_b = add(rows * rank, b);
    std::uint64_t const at_m = add(rows, m);
    pair.a.parts = {{0, at_a, DType::f32, 0, 0, {{rank, columns, 0, 1}, {columns, 1, 1, 0}}}};
    pair.b.parts = {{0, at_b, DType::f32, 0, 0, {{rows, rank, 1, 0}, {rank, 1, 0, 1}}}};
    pair.magnitude = {rows, {{0, at_m, DType::f32, 0, 0, {{rows, 1, 1, 0}}}}};
    pair.weight = {rows,
                   {{0,
                     view.stored.offset_bytes,
                     DType::f32,
                     0,
                     0,
                     {{rows, row_stride, 1, 0}, {columns, column_stride, 0, 1}}}}};
    MergedWeight weight;
    weight.pairs = std::make_shared<std::vector<LowRankPair> const>(1, pair);
    std::vector<MergedDim> dims{{rows, row_stride, 1, 0, 0}, {columns, column_stride, 0, 1, 0}};
    EXPECT_TRUE(nest(dims));
    weight.parts.push_back({0, 0, 0, 0, dims, {}});
    weight.parts[0].pairs =
        std::make_shared<std::vector<std::uint32_t> const>(std::vector<std::uint32_t>{0});
    view.merged = std::make_shared<MergedWeight const>(std::move(weight));
    wanted.resize(w.size());
    for (Index i = 0; i < rows; ++i) {
      double squares = 0;
      std::vector<float> sums;
      for (Index j = 0; j < columns; ++j) {
        auto const at = static_cast<std::size_t>(i * row_stride + j * column_stride);
        sums.push_back(merged(w[at], 0.7F, b, a, rank, columns, i, j));
        squares += static_cast<double>(sums.back()) * static_cast<double>(sums.back());
      }
      float const volatile factor =
          m[static_cast<std::size_t>(i)] / static_cast<float>(std::sqrt(squares));
      for (Index j = 0; j < columns; ++j)
        wanted[static_cast<std::size_t>(i * row_stride + j * column_stride)] =
            factor * sums[static_cast<std::size_t>(j)];
    }
  }
  std::vector<float> wanted;
};

TEST(WeightMerger, GivesRowsTheirMagnitudesInAnyCut) {
  for (bool const transposed : {false, true}) {
    MagnitudeCase const one(transposed);
    ScratchFolder const folder("merge");
    FileSet files({folder.file("all", one.world.bytes)}, FileSet::Access::read);
    std::mt19937_64 random(3);
    for (std::uint64_t const most : {std::uint64_t{30}, std::uint64_t{3500}}) {
      ReadStats stats;
      std::vector<SourceView> const views{one.view};
      FactorTiles tiles(files, stats);
      KeptScales scales;
      ViewReader reader(files, views, stats, tiles, scales);
      std::vector<float> found(one.wanted.size());
      for (std::size_t first = 0; first < found.size();) {
        std::size_t const count = std::min<std::size_t>(found.size() - first, 1 + random() % most);
        reader.read(0, 4 * first, std::as_writable_bytes(std::span(found).subspan(first, count)));
        first += count;
      }
      ASSERT_EQ(found, one.wanted) << transposed;
    }
  }
}

TEST(WeightMerger, RefusesWhatMakesAFiniteWeightInfinite) {
  Case one(3, 20, 2, DType::f32);
  float const infinity = std::numeric_limits<float>::infinity();
  std::uint64_t const a = one.view.merged->pairs->front().a.parts.front().offset_bytes;
  std::memcpy(one.world.bytes.data() + a + 7 * sizeof(float), &infinity, sizeof infinity);
  ScratchFolder const folder("merge");
  FileSet files({folder.file("all", one.world.bytes)}, FileSet::Access::read);
  ReadStats stats;
  FactorTiles tiles(files, stats);
  WeightMerger merger(tiles);
  std::vector<std::uint16_t> found(40);
  std::memcpy(found.data(), one.world.bytes.data() + one.view.stored.offset_bytes + 40, 80);
  try {
    merger.merge(one.view, 20, std::as_writable_bytes(std::span(found)));
    FAIL() << "nothing was refused";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    std::string const sentence = error.sentence();
    EXPECT_NE(sentence.find("'w': with the adapter 'm' element 27 becomes "), std::string::npos)
        << sentence;
    EXPECT_NE(sentence.find("inf in BF16"), std::string::npos) << sentence;
  }
}

TEST(WeightMerger, HoldsBoundedTilesOfLargeFactors) {
  // Tiles of 4096 rows: 16 KiB for a rank of 1 each; more than the 40 KiB that may be held.
  Case const one(2, 30000, 1, DType::bf16);
  ScratchFolder const folder("merge");
  FileSet files({folder.file("all", one.world.bytes)}, FileSet::Access::read);
  ReadStats stats;
  constexpr std::size_t most_bytes = 40 << 10U;
  FactorTiles tiles(files, stats, most_bytes);
  WeightMerger merger(tiles);
  std::vector<std::uint16_t> found(one.w.size());
  std::memcpy(found.data(), one.world.bytes.data() + one.view.stored.offset_bytes,
              found.size() * 2);
  merger.merge(one.view, 0, std::as_writable_bytes(std::span(found)));
  EXPECT_EQ(found, one.wanted());
  EXPECT_LE(tiles.peak_bytes(), most_bytes);
  EXPECT_GT(tiles.peak_bytes(), most_bytes / 2);
}

TEST(FactorTiles, ReadsAnyLayoutOfAFactor) {
  // B [out 40, rank 3, expert 4], experts fastest: the factor of expert 2 in two parts of rows.
  World world;
  std::vector<float> values;
  world.add(40 * 3 * 4, DType::f32, values);
  ScratchFolder const folder("tiles");
  FileSet files({folder.file("all", world.bytes)}, FileSet::Access::read);
  ReadStats stats;
  FactorTiles tiles(files, stats);
  auto const part = [](Index row, Index rows) {
    return FactorPart{0,          static_cast<std::uint64_t>(row * 12 + 2) * 4,
                      DType::f32, row,
                      0,          {{3, 4, 0, 1}, {rows, 12, 1, 0}}};
  };
  Factor const factor{40, {part(0, 25), part(25, 15)}};
  auto const tile = tiles.tile(factor, 3, 17, TileForm::rows);
  ASSERT_EQ(tile->rows, 40);
  for (Index row = 0; row < 40; ++row)
    for (Index k = 0; k < 3; ++k)
      ASSERT_EQ(tile->values[static_cast<std::size_t>(row * 3 + k)],
                values[static_cast<std::size_t>(row * 12 + k * 4 + 2)]);
}

TEST(FactorTiles, CutsAPartWhoseRowsAreSeveralDimensions) {
  // Rows are (head 3, half 2, dim 2000), stored (half, head, dim): tiles cut them anywhere.
  World world;
  std::vector<float> values;
  world.add(12000, DType::bf16, values);
  ScratchFolder const folder("tiles");
  FileSet files({folder.file("all", world.bytes)}, FileSet::Access::read);
  ReadStats stats;
  FactorTiles tiles(files, stats);
  Factor const factor{
      12000,
      {{0, 0, DType::bf16, 0, 0, {{2, 6000, 2000, 0}, {3, 2000, 4000, 0}, {2000, 1, 1, 0}}}}};
  for (Index const row : {0, 4096, 8192}) {
    auto const tile = tiles.tile(factor, 1, row, TileForm::rows);
    for (Index i = 0; i < tile->rows; ++i) {
      Index const at = tile->first + i;
      Index const stored = at / 2000 % 2 * 6000 + at / 4000 * 2000 + at % 2000;
      ASSERT_EQ(tile->values[static_cast<std::size_t>(i)], values[static_cast<std::size_t>(stored)])
          << at;
    }
  }
  EXPECT_LT(stats.bytes, 12000U * 2 * 3) << "only what tiles need, more or less";
}

}  // namespace
}  // namespace reshard
