// What is compared, where it differs, and by how much: against slow versions that look at every
// element by itself.

#include "stages/verify/extent_comparer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

/// Files of one side in memory, filled with random bytes.
struct Sample {
  Model model;
  Catalog catalog;
  std::vector<Bytes> files;
};

/// Every element that pieces name: (file, first byte) -> (tensor, place), by walking the digits one
/// by one.
std::map<std::pair<std::uint32_t, std::uint64_t>, std::pair<std::uint32_t, std::uint64_t>>
all_elements(Sample const& sample) {
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::pair<std::uint32_t, std::uint64_t>> result;
  for (std::uint32_t t = 0; t < sample.catalog.tensors.size(); ++t) {
    auto const domain = sample.model.domain(sample.model.tensors()[t]);
    TensorPieces const& all = sample.catalog.tensors[t];
    for (std::size_t p = 0; p < all.size(); ++p) {
      Piece const piece = all[p];
      Blob const& blob = sample.catalog.blobs[all.blob(p)];
      Index elements = 1;
      for (PieceDigit const& digit : piece.digits) elements *= digit.count;
      for (Index number = 0; number < elements; ++number) {
        Index left = number;
        Index element = piece.offset;
        std::map<AxisId, Index> index;
        for (PieceDigit const& digit : piece.digits) {
          element += left % digit.count * digit.stride;
          index[digit.axis] += (digit.first + left % digit.count) * digit.div;
          left /= digit.count;
        }
        std::uint64_t place = 0;
        for (DomainAxis const& axis : domain)
          place = place * static_cast<std::uint64_t>(axis.runs.back().end) +
                  static_cast<std::uint64_t>(index[axis.axis]);
        auto const bytes = static_cast<std::uint64_t>(bits(blob.dtype) / 8);
        result[{blob.file, blob.offset_bytes + static_cast<std::uint64_t>(element) * bytes}] = {
            t, place};
      }
    }
  }
  return result;
}

/// Tensors over 6 x 4 x 10: one whole with its dimensions in another order, one in blocks of 5 of
/// its last axis, two that share rows of a blob, and a scalar; at odd offsets.
Sample make_sample(DType dtype, std::mt19937& random) {
  std::vector<PlainTensor> const plain = {{"moved", {6, 4, 10}},
                                          {"blocks", {6, 4, 10}},
                                          {"left", {6, 10}},
                                          {"right", {6, 10}},
                                          {"scalar", {}}};
  Sample sample{Model(plain, "here"), {}, {}};
  sample.catalog.files = {"first", "second"};
  sample.catalog.tensors.resize(plain.size());
  auto const axis = [&](std::size_t tensor, std::size_t d) {
    return sample.model.tensors()[tensor].axes[d].axis;
  };
  auto const bytes = static_cast<std::uint64_t>(bits(dtype) / 8);
  sample.catalog.add(
      {0, 3, dtype, "moved"},
      {{TensorId{0},
        {{axis(0, 0), 6, 1, 0, 6, 1}, {axis(0, 1), 4, 1, 0, 4, 60}, {axis(0, 2), 10, 1, 0, 10, 6}},
        {},
        0}},
      false);
  for (Index half = 0; half < 2; ++half)
    sample.catalog.add({1, 8 + static_cast<std::uint64_t>(half) * 120 * bytes, dtype, "blocks"},
                       {{TensorId{1},
                         {{axis(1, 0), 6, 1, 0, 6, 20},
                          {axis(1, 1), 4, 1, 0, 4, 5},
                          {axis(1, 2), 10, 5, half, 1, 0},
                          {axis(1, 2), 5, 1, 0, 5, 1}},
                         {},
                         0}},
                       false);
  Piece const left{
      TensorId{2}, {{axis(2, 0), 6, 1, 0, 6, 20}, {axis(2, 1), 10, 1, 0, 10, 1}}, {}, 0};
  Piece const right{
      TensorId{3}, {{axis(3, 0), 6, 1, 0, 6, 20}, {axis(3, 1), 10, 1, 0, 10, 1}}, {}, 10};
  sample.catalog.add({0, 3 + 240 * bytes, dtype, "both"}, {left, right}, false);
  sample.catalog.add({0, 3 + 360 * bytes, dtype, "scalar"}, {{TensorId{4}, {}, {}, 0}}, false);
  sample.files = {Bytes(3 + 361 * bytes), Bytes(8 + 240 * bytes)};
  for (Bytes& file : sample.files)
    for (std::byte& byte : file) byte = static_cast<std::byte>(random() % 256);
  return sample;
}

/// Two extents that touch, and the whole second file.
std::vector<Extent> extents_of(Sample const& sample, DType dtype) {
  auto const bytes = static_cast<std::uint64_t>(bits(dtype) / 8);
  std::uint64_t const first = sample.files[0].size() - 3;
  return {{0, 3 + 77 * bytes, first - 77 * bytes, 0},
          {1, 8, sample.files[1].size() - 8, first},
          {0, 3, 77 * bytes, first - 77 * bytes}};
}

Bytes staged(Sample const& sample, std::vector<Extent> const& extents) {
  Bytes staging(sample.files[0].size() + sample.files[1].size());
  for (Extent const& extent : extents)
    std::memcpy(staging.data() + extent.at, sample.files[extent.file].data() + extent.offset_bytes,
                extent.bytes);
  return staging;
}

std::vector<TensorStats> compared(Sample const& sample, std::vector<Bytes> const& b, DType dtype,
                                  Comparison comparison, std::uint64_t buffer) {
  StoredPlaces const places(sample.model, sample.catalog);
  ExtentComparer comparer(
      sample.catalog, places, comparison,
      [&b](std::span<Extent const> extents, std::byte* memory) {
        for (Extent const& extent : extents)
          std::memcpy(memory + extent.at, b[extent.file].data() + extent.offset_bytes,
                      extent.bytes);
      },
      buffer);
  std::vector<Extent> const extents = extents_of(sample, dtype);
  comparer.compare(extents, staged(sample, extents).data());
  return comparer.stats();
}

TEST(ExtentComparer, ReplicasAreMeasuredApart) {
  std::vector<PlainTensor> const plain = {{"t", {4}}};
  Sample sample{Model(plain, "here"), {}, {Bytes(16), Bytes(16)}};
  sample.catalog.files = {"first", "second"};
  sample.catalog.tensors.resize(1);
  AxisId const axis = sample.model.tensors()[0].axes[0].axis;
  for (std::uint32_t file = 0; file < 2; ++file)
    sample.catalog.add({file, 0, DType::f32, "t"}, {{TensorId{0}, {{axis, 4, 1, 0, 4, 1}}, {}, 0}},
                       false);
  std::vector<Bytes> b = sample.files;
  std::array<float, 2> const others = {2, std::numeric_limits<float>::quiet_NaN()};
  std::memcpy(b[1].data() + 4, others.data(), sizeof others);
  StoredPlaces const places(sample.model, sample.catalog);
  ExtentComparer comparer(sample.catalog, places, Comparison::values,
                          [&b](std::span<Extent const> extents, std::byte* memory) {
                            for (Extent const& extent : extents)
                              std::memcpy(memory + extent.at,
                                          b[extent.file].data() + extent.offset_bytes,
                                          extent.bytes);
                          });
  std::vector<Extent> const extents = {{0, 0, 16, 0}, {1, 0, 16, 16}};
  comparer.compare(extents, staged(sample, extents).data());
  TensorStats const& stats = comparer.stats().front();
  EXPECT_EQ(stats.elements, 4U);
  EXPECT_EQ(stats.differing, 0U);
  EXPECT_EQ(stats.absolute.value, 0);
  EXPECT_EQ(stats.nan_b, 0U);
  EXPECT_EQ(stats.differing_in_replicas, 2U);
  EXPECT_EQ(stats.absolute_in_replicas, 2);
  EXPECT_EQ(stats.relative_in_replicas, 1);
  EXPECT_EQ(stats.non_finite_in_replicas, 1U);
}

TEST(StoredPlaces, EveryElementIsFoundBothWays) {
  std::mt19937 random(1);
  for (DType const dtype : {DType::u8, DType::bf16, DType::f32, DType::c128}) {
    Sample const sample = make_sample(dtype, random);
    StoredPlaces const places(sample.model, sample.catalog);
    for (auto const& [at, what] : all_elements(sample)) {
      StoredRun const run = places.run_at(at.first, at.second);
      ASSERT_EQ(run.tensor, what.first);
      ASSERT_EQ(places.place_of(run.tensor, run.piece, run.element), what.second);
      ASSERT_FALSE(run.replica);
      auto const found = places.find(run.tensor, places.indices_at(run.tensor, what.second));
      ASSERT_TRUE(found);
      ASSERT_EQ(sample.catalog.blobs[found->blob].file, at.first);
      ASSERT_EQ(found->offset_bytes, at.second);
      auto const bytes = static_cast<std::uint64_t>(bits(dtype) / 8);
      ASSERT_EQ(places.begin_of_element(at.first, at.second + bytes - 1), at.second);
    }
  }
}

TEST(StoredPlaces, ARunGoesOnAsLongAsNeighboursAreOfTheSamePiece) {
  std::mt19937 random(1);
  Sample const sample = make_sample(DType::f32, random);
  StoredPlaces const places(sample.model, sample.catalog);
  EXPECT_EQ(places.run_at(0, 3).elements, 240);
  EXPECT_FALSE(places.run_at(0, 3).ascending);
  EXPECT_EQ(places.run_at(1, 8 + 7 * 4).elements, 113);
  EXPECT_EQ(places.run_at(0, 3 + 4 * (240 + 24)).elements, 6);  // of a row of `left`
  EXPECT_TRUE(places.run_at(0, 3 + 4 * 240).ascending);
  EXPECT_EQ(places.text_of(0, places.indices_at(0, 57)), "[1, 1, 7]");
}

TEST(StoredPlaces, OneOfSeveralEqualPiecesCounts) {
  std::vector<PlainTensor> const plain = {{"norm", {8}}};
  Sample sample{Model(plain, "here"), {}, {}};
  sample.catalog.files = {"first", "second"};
  sample.catalog.tensors.resize(1);
  for (std::uint32_t file = 0; file < 3; ++file)
    sample.catalog.add({file % 2, file / 2 * 100, DType::u8, "norm"},
                       {{{}, {{0, 8, 1, 0, 8, 1}}, {}, 0}}, file == 0);
  StoredPlaces const places(sample.model, sample.catalog);
  EXPECT_TRUE(places.run_at(0, 0).replica);  // a declared copy
  EXPECT_FALSE(places.run_at(1, 0).replica);
  EXPECT_TRUE(places.run_at(0, 100).replica);
}

TEST(ExtentComparer, FindsEveryFlippedBit) {
  std::mt19937 random(2);
  for (DType const dtype : {DType::u8, DType::bf16, DType::f32, DType::f64})
    for (std::uint64_t const buffer :
         {std::uint64_t{64}, std::uint64_t{100}, std::uint64_t{1} << 20}) {
      Sample const sample = make_sample(dtype, random);
      auto const elements = all_elements(sample);
      std::vector<Bytes> other = sample.files;
      for (TensorStats const& stats : compared(sample, other, dtype, Comparison::bytes, buffer))
        EXPECT_TRUE(stats.same());
      std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>>
          expected;  // tensor -> differing, lowest place
      for (int flip = 0; flip < 20; ++flip) {
        auto const chosen =
            std::next(elements.begin(), static_cast<std::ptrdiff_t>(random() % elements.size()));
        auto const& [file, offset] = chosen->first;
        std::byte& byte = other[file][offset + random() % static_cast<unsigned>(bits(dtype) / 8)];
        if (std::memcmp(&other[file][offset], &sample.files[file][offset],
                        static_cast<std::size_t>(bits(dtype) / 8)) != 0)
          continue;
        byte ^= static_cast<std::byte>(1U << random() % 8);
        auto& [count, lowest] =
            expected.try_emplace(chosen->second.first, 0, DifferingElement::nowhere).first->second;
        ++count;
        lowest = std::min(lowest, chosen->second.second);
      }
      auto const found = compared(sample, other, dtype, Comparison::bytes, buffer);
      for (std::uint32_t t = 0; t < found.size(); ++t) {
        auto const [count, lowest] = expected.contains(t) ? expected[t]
                                                          : std::pair<std::uint64_t, std::uint64_t>{
                                                                0, DifferingElement::nowhere};
        EXPECT_EQ(found[t].differing, count);
        EXPECT_EQ(found[t].first.place, lowest);
      }
    }
}

TEST(ExtentComparer, MeasuresValues) {
  std::mt19937 random(3);
  Sample const sample = make_sample(DType::bf16, random);
  std::vector<Bytes> other = sample.files;
  for (Bytes& file : other)
    for (std::byte& byte : file)
      if (random() % 3 == 0) byte = static_cast<std::byte>(random() % 256);
  std::vector<TensorStats> expected(5);
  for (auto const& [at, what] : all_elements(sample)) {
    auto const value = [&at = at](std::vector<Bytes> const& files) {
      std::uint32_t code = 0;
      std::memcpy(reinterpret_cast<char*>(&code) + 2, files[at.first].data() + at.second, 2);
      return static_cast<double>(std::bit_cast<float>(code));
    };
    double const a = value(sample.files);
    double const b = value(other);
    TensorStats one;
    one.elements = 1;
    one.differing =
        std::memcmp(&sample.files[at.first][at.second], &other[at.first][at.second], 2) != 0;
    one.nan_a = std::isnan(a), one.nan_b = std::isnan(b), one.infinite_a = std::isinf(a),
    one.infinite_b = std::isinf(b);
    one.largest_a = std::isfinite(a) ? std::abs(a) : 0,
    one.largest_b = std::isfinite(b) ? std::abs(b) : 0;
    if (std::isfinite(a) && std::isfinite(b)) {
      one.finite = 1;
      one.absolute_sum = std::abs(a - b);
      if (a != b)
        one.absolute = {std::abs(a - b), what.second},
        one.relative = {std::abs(a - b) / std::max(std::abs(a), std::abs(b)), what.second};
    } else {
      one.non_finite_differing = a != b && !(std::isnan(a) && std::isnan(b));
    }
    expected[what.first].add(one);
  }
  auto const found = compared(sample, other, DType::bf16, Comparison::values, 128);
  for (std::size_t t = 0; t < found.size(); ++t) {
    EXPECT_EQ(found[t].elements, expected[t].elements);
    EXPECT_EQ(found[t].differing, expected[t].differing);
    EXPECT_EQ(found[t].finite, expected[t].finite);
    EXPECT_DOUBLE_EQ(found[t].absolute_sum, expected[t].absolute_sum);
    EXPECT_EQ(found[t].absolute.value, expected[t].absolute.value);
    EXPECT_EQ(found[t].absolute.place, expected[t].absolute.place);
    EXPECT_EQ(found[t].relative.value, expected[t].relative.value);
    EXPECT_EQ(found[t].largest_a, expected[t].largest_a);
    EXPECT_EQ(found[t].largest_b, expected[t].largest_b);
    EXPECT_EQ(found[t].nan_a, expected[t].nan_a);
    EXPECT_EQ(found[t].nan_b, expected[t].nan_b);
    EXPECT_EQ(found[t].infinite_a, expected[t].infinite_a);
    EXPECT_EQ(found[t].infinite_b, expected[t].infinite_b);
    EXPECT_EQ(found[t].non_finite_differing, expected[t].non_finite_differing);
  }
}

TEST(ShownValue, ReadsEveryNumberFormat) {
  auto const value = [](DType dtype, std::uint64_t code) {
    std::array<std::byte, 8> bytes{};
    std::memcpy(bytes.data(), &code, sizeof code);
    double result = 0;
    decode_values(dtype, std::span(bytes).first(static_cast<std::size_t>(bits(dtype) / 8)),
                  {&result, 1});
    return result;
  };
  EXPECT_EQ(value(DType::boolean, 1), 1);
  EXPECT_EQ(value(DType::i8, 0x80), -128);
  EXPECT_EQ(value(DType::u16, 0xffff), 65535);
  EXPECT_EQ(value(DType::i64, ~std::uint64_t{0}), -1);
  EXPECT_EQ(value(DType::f8_e4m3, 0x7e), 448);
  EXPECT_EQ(value(DType::f8_e5m2, 0x7b), 57344);
  EXPECT_TRUE(std::isinf(value(DType::f8_e5m2, 0x7c)));
  EXPECT_EQ(value(DType::f8_e8m0, 127), 1);
  EXPECT_EQ(value(DType::f8_e4m3fnuz, 0x7f), 240);
  EXPECT_EQ(value(DType::f8_e5m2fnuz, 0xff), -57344);
  EXPECT_EQ(value(DType::f8_e4m3fnuz, 0x01), std::ldexp(1, -10));
  EXPECT_TRUE(std::isnan(value(DType::f8_e4m3fnuz, 0x80)));
  EXPECT_EQ(value(DType::f16, 0x7bff), 65504);
  EXPECT_EQ(value(DType::bf16, 0xc000), -2);
  EXPECT_FALSE(has_values(DType::c64));
  EXPECT_FALSE(has_values(DType::f4));
}

TEST(ShownValue, ShowsValues) {
  auto const text = [](DType dtype, std::initializer_list<int> bytes) {
    Bytes element;
    for (int const byte : bytes) element.push_back(static_cast<std::byte>(byte));
    return value_text(dtype, element);
  };
  EXPECT_EQ(text(DType::bf16, {0x80, 0x3f}), "1");
  EXPECT_EQ(text(DType::bf16, {0xc0, 0x7f}), "NaN");
  EXPECT_EQ(text(DType::boolean, {1}), "true");
  EXPECT_EQ(text(DType::c64, {1, 2, 3, 4, 5, 6, 7, 8}), "0x0807060504030201");
  EXPECT_EQ(text(DType::u64, {255, 255, 255, 255, 255, 255, 255, 255}), "18446744073709551615");
}

}  // namespace
}  // namespace reshard
