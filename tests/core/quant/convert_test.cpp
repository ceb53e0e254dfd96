#include "core/quant/convert.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/quant/convert_element.hpp"

namespace reshard {
namespace {

/// What convert() made of the elements, or where it stopped.
template <class To>
struct Converted {
  std::vector<To> elements;
  std::optional<quant::Inexact> inexact;
};

template <class To, class From>
Converted<To> converted(DType stored, std::vector<From> const& elements, double constant,
                        DType wanted) {
  Converted<To> result{std::vector<To>(elements.size()), {}};
  result.inexact = quant::convert(stored, std::as_bytes(std::span(elements)), constant, wanted,
                                  std::as_writable_bytes(std::span(result.elements)));
  return result;
}

std::vector<std::uint16_t> all_codes() {
  std::vector<std::uint16_t> codes;
  for (std::uint32_t code = 0; code < 65536; ++code)
    codes.push_back(static_cast<std::uint16_t>(code));
  return codes;
}

TEST(Convert, WideningAndBackIsTheSameBits) {
  for (DType const narrow : {DType::bf16, DType::f16}) {
    auto const as_f32 = converted<std::uint32_t>(narrow, all_codes(), 0, DType::f32);
    ASSERT_FALSE(as_f32.inexact);
    auto const as_f64 = converted<std::uint64_t>(DType::f32, as_f32.elements, 0, DType::f64);
    ASSERT_FALSE(as_f64.inexact);
    auto const back = converted<std::uint16_t>(DType::f64, as_f64.elements, 0, narrow);
    ASSERT_FALSE(back.inexact);
    EXPECT_EQ(back.elements, all_codes()) << name(narrow);
  }
}

TEST(Convert, Bf16IsTheUpperHalfOfF32) {
  auto const wide = converted<std::uint32_t>(DType::bf16, all_codes(), 0, DType::f32);
  for (std::uint32_t code = 0; code < 65536; ++code) ASSERT_EQ(wide.elements[code], code << 16U);
}

TEST(Convert, ManyElementsBecomeWhatEachBecomes) {
  std::mt19937_64 random(7);
  std::vector<DType> const stored{DType::f64, DType::f32,     DType::bf16,
                                  DType::f16, DType::f8_e4m3, DType::f8_e5m2};
  for (DType const from : stored)
    for (DType const to : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (double const constant : {0.0, 1.0}) {
        auto const source = *quant::float_format(from);
        auto const target = *quant::float_format(to);
        std::vector<std::byte> codes;
        std::vector<std::byte> wanted;
        while (codes.size() < 4096) {
          std::uint64_t const code = random() >> static_cast<unsigned>(64 - source.bits());
          quant::Encoded const one = quant::convert_element(source, target, code, constant);
          if (!one.exact && random() % 512 != 0) continue;  // one or another has a loss
          auto const append = [](std::vector<std::byte>& bytes, std::uint64_t value, int bits) {
            for (int b = 0; b < bits; b += 8) bytes.push_back(static_cast<std::byte>(value >> b));
          };
          append(codes, code, source.bits());
          append(wanted, one.code, target.bits());
          if (!one.exact) break;
        }
        std::vector<std::byte> found(wanted.size());
        auto const inexact = quant::convert(from, codes, constant, to, found);
        auto const size = static_cast<std::size_t>(target.bits() / 8);
        std::size_t const good = inexact ? inexact->element * size : wanted.size();
        EXPECT_GE(good + size, wanted.size()) << name(from) << " to " << name(to);
        EXPECT_TRUE(std::equal(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(good),
                               found.begin()))
            << name(from) << " to " << name(to) << ", plus " << constant;
      }
}

TEST(Convert, KeepsWhateverTheGeneralFunctionKeeps) {
  // Every upper half of F32 beside lower halves on which rounding depends; many in one call where
  // all are exact.
  for (DType const wanted : {DType::bf16, DType::f16}) {
    auto const target = *quant::float_format(wanted);
    std::vector<std::uint32_t> exact;
    std::vector<std::uint16_t> codes;
    for (std::uint32_t upper = 0; upper < 65536; ++upper)
      for (std::uint32_t const lower : {0x0000U, 0x0001U, 0x1000U, 0x2000U, 0x8000U, 0xe000U}) {
        std::uint32_t const value = upper << 16U | lower;
        auto const one = quant::convert_element(quant::formats::f32, target, value, 0);
        auto const found =
            converted<std::uint16_t>(DType::f32, std::vector<std::uint32_t>{value}, 0, wanted);
        ASSERT_EQ(found.inexact.has_value(), !one.exact) << std::hex << value;
        if (!one.exact) continue;
        ASSERT_EQ(found.elements[0], one.code) << std::hex << value;
        exact.push_back(value);
        codes.push_back(static_cast<std::uint16_t>(one.code));
      }
    auto const all = converted<std::uint16_t>(DType::f32, exact, 0, wanted);
    EXPECT_FALSE(all.inexact);
    EXPECT_EQ(all.elements, codes);
    std::vector<std::uint32_t> numbers;
    std::vector<std::uint16_t> number_codes;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      if ((exact[i] & 0x7f800000U) == 0x7f800000U) continue;
      numbers.push_back(exact[i]);
      number_codes.push_back(codes[i]);
    }
    EXPECT_EQ(converted<std::uint16_t>(DType::f32, numbers, 0, wanted).elements, number_codes);
    EXPECT_EQ(converted<std::uint32_t>(wanted, codes, 0, DType::f32).elements, exact);
  }
}

TEST(Convert, NarrowingStopsAtTheFirstValueThatIsNotThere) {
  std::vector<float> const values{1, -0.5, 0, 1.5, 1.001F, 1.0001F};
  auto const result = converted<std::uint16_t>(DType::f32, values, 0, DType::bf16);
  ASSERT_TRUE(result.inexact);
  EXPECT_EQ(result.inexact->element, 4U);
  EXPECT_EQ(result.inexact->value, static_cast<double>(1.001F));
  EXPECT_EQ(result.elements[1], 0xbf00U);
  EXPECT_TRUE(
      converted<std::uint16_t>(DType::f32, std::vector<float>{1e30F}, 0, DType::f16).inexact)
      << "an overflow is no infinity";
  EXPECT_TRUE(
      converted<std::uint16_t>(DType::bf16, std::vector<std::uint16_t>{0x0001}, 0, DType::f16)
          .inexact)
      << "too small";
  EXPECT_FALSE(
      converted<std::uint16_t>(DType::f16, std::vector<std::uint16_t>{0x3c00}, 0, DType::bf16)
          .inexact);
}

TEST(Convert, AddsExactlyOrNotAtAll) {
  std::vector<std::uint16_t> const stored{0x3f80, 0xbf80, 0x3f00, 0x3c00,
                                          0x8000};  // 1, -1, 0.5, 2^-7, -0
  auto const added = converted<std::uint16_t>(DType::bf16, stored, 1, DType::bf16);
  ASSERT_FALSE(added.inexact);
  EXPECT_EQ(added.elements, (std::vector<std::uint16_t>{0x4000, 0x0000, 0x3fc0, 0x3f81, 0x3f80}));
  auto const back = converted<std::uint16_t>(DType::bf16, added.elements, -1, DType::bf16);
  ASSERT_FALSE(back.inexact);
  EXPECT_EQ(back.elements, (std::vector<std::uint16_t>{0x3f80, 0xbf80, 0x3f00, 0x3c00, 0x0000}))
      << "only the sign of a zero is lost";
  std::vector<std::uint16_t> const small{0x3b80};  // 2^-8
  EXPECT_TRUE(converted<std::uint16_t>(DType::bf16, small, 1, DType::bf16).inexact);
  auto const wide = converted<float>(DType::bf16, small, 1, DType::f32);
  ASSERT_FALSE(wide.inexact);
  EXPECT_EQ(wide.elements[0], 1 + std::ldexp(1.0F, -8));
}

TEST(Convert, ASumThatADoubleCannotHoldIsInexact) {
  for (double const tiny : {std::ldexp(1, -60), std::ldexp(1, -1074), -std::ldexp(1, -54)})
    EXPECT_TRUE(converted<double>(DType::f64, std::vector<double>{tiny}, 1, DType::f64).inexact)
        << tiny;
  EXPECT_FALSE(converted<double>(DType::f64, std::vector<double>{std::ldexp(1, -52)}, 1, DType::f64)
                   .inexact);
  EXPECT_TRUE(converted<double>(DType::f32, std::vector<float>{1e-30F}, 1, DType::f64).inexact);
}

TEST(Convert, AddingLeavesInfinitiesAndNansAlone) {
  std::vector<std::uint16_t> const specials{0x7f80, 0xff80, 0x7fc0, 0xffa5, 0x7f81};
  auto const added = converted<std::uint16_t>(DType::bf16, specials, 1, DType::bf16);
  ASSERT_FALSE(added.inexact);
  EXPECT_EQ(added.elements, specials);
}

TEST(Convert, AddingIsExactWhereverTheOldValueComesBack) {
  for (std::uint16_t const code : all_codes()) {
    auto const added = converted<std::uint16_t>(DType::bf16, std::vector{code}, 1, DType::bf16);
    if (added.inexact) continue;
    auto const back = converted<std::uint16_t>(DType::bf16, added.elements, -1, DType::bf16);
    ASSERT_FALSE(back.inexact) << code;
    ASSERT_EQ(back.elements[0], code == 0x8000 ? 0 : code);
  }
}

TEST(Convert, TakesEightBitFloatsAsStoredOnly) {
  EXPECT_TRUE(quant::convertible(DType::f8_e4m3, DType::bf16));
  EXPECT_FALSE(quant::convertible(DType::bf16, DType::f8_e5m2));
  EXPECT_FALSE(quant::convertible(DType::i32, DType::f32));
  EXPECT_FALSE(quant::convertible(DType::f32, DType::u8));
  auto const found =
      converted<float>(DType::f8_e4m3, std::vector<std::uint8_t>{0x7e, 0x80, 0x01}, 0, DType::f32);
  EXPECT_EQ(found.elements[0], 448);
  EXPECT_TRUE(std::signbit(found.elements[1]));
  EXPECT_EQ(found.elements[2], std::ldexp(1.0F, -9));
}

}  // namespace
}  // namespace reshard
