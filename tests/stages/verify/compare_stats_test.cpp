#include "stages/verify/surveys/compare_stats.hpp"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

namespace reshard {
namespace {

template <class T>
std::vector<std::byte> bytes_of(std::vector<T> const& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<double> decoded(DType dtype, std::vector<T> const& from) {
  std::vector<double> values(from.size());
  decode_values(dtype, bytes_of(from), values);
  return values;
}

template <class T>
std::string text(DType dtype, T value) {
  return value_text(dtype, bytes_of(std::vector<T>{value}));
}

using Doubles = std::vector<double>;

TEST(CompareStats, NumbersAreDecoded) {
  EXPECT_EQ(decoded<double>(DType::f64, {1.5, -2e300}), (Doubles{1.5, -2e300}));
  EXPECT_EQ(decoded<float>(DType::f32, {1.5F, -0.25F}), (Doubles{1.5, -0.25}));
  EXPECT_EQ(decoded<std::uint16_t>(DType::bf16, {0x3f80, 0xc040}), (Doubles{1, -3}));
  EXPECT_EQ(decoded<std::uint16_t>(DType::f16, {0x3c00, 0xc200}), (Doubles{1, -3}));
  EXPECT_EQ(decoded<std::int16_t>(DType::i16, {-2, 3}), (Doubles{-2, 3}));
  EXPECT_EQ(decoded<std::uint16_t>(DType::u16, {65535, 3}), (Doubles{65535, 3}));
  EXPECT_EQ(decoded<std::int32_t>(DType::i32, {-70000, 3}), (Doubles{-70000, 3}));
  EXPECT_EQ(decoded<std::uint32_t>(DType::u32, {4000000000U, 3}), (Doubles{4e9, 3}));
  EXPECT_EQ(decoded<std::int64_t>(DType::i64, {-5000000000, 3}), (Doubles{-5e9, 3}));
  EXPECT_EQ(decoded<std::uint64_t>(DType::u64, {1ULL << 63U, 3}), (Doubles{std::ldexp(1, 63), 3}));
}

TEST(CompareStats, BytesAreDecoded) {
  EXPECT_EQ(decoded<std::int8_t>(DType::i8, {-1, 127}), (Doubles{-1, 127}));
  EXPECT_EQ(decoded<std::uint8_t>(DType::u8, {255, 1}), (Doubles{255, 1}));
  EXPECT_EQ(decoded<std::uint8_t>(DType::boolean, {0, 1, 2}), (Doubles{0, 1, 1}));
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e4m3, {0x38, 0xc0}), (Doubles{1, -2}));
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e5m2, {0x3c, 0xc0}), (Doubles{1, -2}));
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e8m0, {127, 128}), (Doubles{1, 2}));
  // The bias is larger by one, and the largest exponent has numbers.
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e4m3fnuz, {0x40, 0x7f}), (Doubles{1, 240}));
  EXPECT_EQ(decoded<std::uint8_t>(DType::f8_e5m2fnuz, {0x40, 0x7f}), (Doubles{1, 57344}));
  EXPECT_TRUE(std::isnan(decoded<std::uint8_t>(DType::f8_e4m3fnuz, {0x80})[0]));
}

TEST(CompareStats, DifferencesAreCountedByPowersOfTen) {
  DifferenceDecades decades;
  for (double const difference :
       {1e-300, 9.9e-11, 1e-10, 9.9e-10, 0.05, 0.1, 1.0, 9.0, 999.0, 1e3, 1e30})
    decades.add(difference);
  EXPECT_EQ(decades.counts,
            (std::array<std::uint64_t, 15>{2, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 1, 2}));
  EXPECT_EQ(decades.sum(), 11U);
  DifferenceDecades twice = decades;
  twice.add(decades);
  EXPECT_EQ(twice.sum(), 22U);
  EXPECT_EQ(DifferenceDecades::name(0), "below 1e-10");
  EXPECT_EQ(DifferenceDecades::name(1), "1e-10");
  EXPECT_EQ(DifferenceDecades::name(11), "1e0");
  EXPECT_EQ(DifferenceDecades::name(14), "1e3 and more");
}

TEST(CompareStats, OnlySomeTypesHaveValues) {
  for (DType const dtype : {DType::f4, DType::f6_e2m3, DType::f6_e3m2, DType::c32, DType::c64,
                            DType::c128, DType::f4_x2})
    EXPECT_FALSE(has_values(dtype)) << name(dtype);
  for (DType const dtype : {DType::boolean, DType::u8, DType::f8_e4m3, DType::bf16, DType::f64})
    EXPECT_TRUE(has_values(dtype)) << name(dtype);
}

TEST(CompareStats, ValuesAreTold) {
  EXPECT_EQ(text<float>(DType::f32, 0.1F), "0.1");
  EXPECT_EQ(text<double>(DType::f64, 0.1), "0.1");
  EXPECT_EQ(text<double>(DType::f64, 1.0000000001), "1.0000000001");
  EXPECT_EQ(text<std::uint16_t>(DType::bf16, 0x7fc0), "NaN");
  EXPECT_EQ(text<std::uint8_t>(DType::boolean, 1), "true");
  EXPECT_EQ(text<std::uint8_t>(DType::boolean, 0), "false");
  EXPECT_EQ(text<std::int64_t>(DType::i64, -9007199254740993), "-9007199254740993");
  EXPECT_EQ(text<std::uint64_t>(DType::u64, 18446744073709551615U), "18446744073709551615");
  EXPECT_EQ(text<std::uint32_t>(DType::c32, 0x0102a0ffU), "0x0102a0ff");
}

TEST(CompareStats, OfEqualValuesTheFirstPlaceCounts) {
  LargestValue largest;
  largest.take({});
  EXPECT_EQ(largest.place, DifferingElement::nowhere);
  largest.take({0, 7});
  EXPECT_EQ(largest.place, 7U);
  largest.take({2, 9});
  EXPECT_EQ(largest.place, 9U);
  largest.take({2, 11});
  EXPECT_EQ(largest.place, 9U);
  largest.take({2, 3});
  EXPECT_EQ(largest.place, 3U);
  largest.take({1, 0});
  EXPECT_EQ(largest.place, 3U);
}

TEST(CompareStats, AreAddedMemberByMember) {
  auto const make = [](std::uint64_t n) {
    TensorStats stats;
    stats.elements = n;
    stats.differing = n + 1;
    stats.differing_in_replicas = n + 2;
    stats.first.place = 100 - n;
    stats.absolute = {static_cast<double>(n), n};
    stats.relative = {static_cast<double>(100 - n), n};
    stats.absolute_sum = static_cast<double>(n) / 2;
    stats.finite = n + 3;
    stats.largest_a = static_cast<double>(n);
    stats.largest_b = static_cast<double>(100 - n);
    stats.nan_a = n + 4;
    stats.nan_b = n + 5;
    stats.infinite_a = n + 6;
    stats.infinite_b = n + 7;
    stats.non_finite_differing = n + 8;
    stats.absolute_in_replicas = static_cast<double>(n + 9);
    stats.relative_in_replicas = static_cast<double>(100 - n);
    stats.non_finite_in_replicas = n + 10;
    return stats;
  };
  TensorStats sum = make(10);
  sum.add(make(20));
  EXPECT_EQ(sum.elements, 30U);
  EXPECT_EQ(sum.differing, 32U);
  EXPECT_EQ(sum.differing_in_replicas, 34U);
  EXPECT_EQ(sum.first.place, 80U);
  EXPECT_EQ(sum.absolute.place, 20U);
  EXPECT_EQ(sum.relative.place, 10U);
  EXPECT_EQ(sum.absolute_sum, 15);
  EXPECT_EQ(sum.finite, 36U);
  EXPECT_EQ(sum.largest_a, 20);
  EXPECT_EQ(sum.largest_b, 90);
  EXPECT_EQ(sum.nan_a, 38U);
  EXPECT_EQ(sum.nan_b, 40U);
  EXPECT_EQ(sum.infinite_a, 42U);
  EXPECT_EQ(sum.infinite_b, 44U);
  EXPECT_EQ(sum.non_finite_differing, 46U);
  EXPECT_EQ(sum.absolute_in_replicas, 29);
  EXPECT_EQ(sum.relative_in_replicas, 90);
  EXPECT_EQ(sum.non_finite_in_replicas, 50U);
}

TEST(CompareStats, TheFirstElementIsByPlaceThenFileThenOffset) {
  DifferingElement a;
  a.place = 3;
  a.file = 1;
  a.offset_bytes = 5;
  DifferingElement b = a;
  EXPECT_FALSE(a.before(b));
  b.offset_bytes = 6;
  EXPECT_TRUE(a.before(b));
  b.file = 0;
  EXPECT_FALSE(a.before(b));
  b.place = 4;
  EXPECT_TRUE(a.before(b));
  EXPECT_TRUE(a.found());
  EXPECT_FALSE(DifferingElement().found());
}

TEST(CompareStats, SameMeansNoDifferenceInReplicasEither) {
  TensorStats stats;
  EXPECT_TRUE(stats.same());
  stats.differing_in_replicas = 1;
  EXPECT_FALSE(stats.same());
}

}  // namespace
}  // namespace reshard
