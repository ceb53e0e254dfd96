#include "core/device/value_program.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/device/kernels/host_runs.hpp"
#include "tests/support/value_cases.hpp"

namespace reshard {
namespace {

using test::ConvertCase;
using test::DeviceCase;

/// The target's memory after all launches.
std::vector<std::byte> result_of(DeviceCase const& device) {
  std::vector<std::byte> to = device.to;
  for (Launch const& launch : device.program.launches)
    run_value_on_host(launch, {device.program.bytes.data(), device.from.data(), to.data()});
  return to;
}

void expect_result(DeviceCase const& device) {
  std::vector<std::byte> const found = result_of(device);
  if (found == device.wanted) return;
  auto const place =
      std::mismatch(found.begin(), found.end(), device.wanted.begin()).first - found.begin();
  FAIL() << device.name << ": byte " << place << " of " << found.size();
}

TEST(ConvertProgram, EveryCodeOfTheShortFormats) {
  for (DeviceCase const& device : test::all_code_cases())
    ASSERT_NO_FATAL_FAILURE(expect_result(device));
}

TEST(ConvertProgram, AgreesWithTheHostAtEveryPlace) {
  std::uint64_t const first_seed = std::random_device{}();
  int inexact = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + 300; ++seed) {
    ConvertCase const converts = test::random_convert_case(seed);
    ASSERT_NO_FATAL_FAILURE(expect_result(converts.device));
    inexact += converts.inexact ? 1 : 0;
  }
  EXPECT_GT(inexact, 30) << "seed " << first_seed;
  EXPECT_LT(inexact, 270) << "seed " << first_seed;
}

TEST(ConvertProgram, TheVerdictIsTheFirstRequestAndItsFirstElement) {
  std::vector<std::uint64_t> const counts{3, 70000, 40000};
  for (auto const& places :
       std::vector<std::vector<InexactPlace>>{{},
                                              {{2, 39999}},
                                              {{2, 0}, {1, 69999}},
                                              {{1, 30000}, {1, 30001}, {1, 8191}, {2, 5}},
                                              {{0, 2}, {1, 0}},
                                              {{0, 0}, {0, 1}, {0, 2}}}) {
    ConvertCase const converts = test::inexact_case(counts, places);
    ASSERT_NO_FATAL_FAILURE(expect_result(converts.device));
    auto const found = inexact_of(result_of(converts.device).data() + test::verdict_place);
    ASSERT_EQ(found.has_value(), !places.empty());
    if (!found) continue;
    EXPECT_EQ(found->request, converts.inexact->request);
    EXPECT_EQ(found->element, converts.inexact->element);
  }
}

TEST(ConvertProgram, AClearVerdictSaysNothing) {
  std::vector<std::byte> verdict(verdict_bytes, std::byte{0xff});
  clear_verdict(verdict.data());
  EXPECT_FALSE(inexact_of(verdict.data()));
}

/// One element through the kernel, rounded.
std::uint32_t rounded(DType stored, std::uint64_t code, double constant, DType wanted) {
  Program program;
  std::uint64_t from[2] = {code, 0};
  std::uint64_t to[4] = {};
  ConvertRequest const request{.from = 0,
                               .to = 16,
                               .stored = stored,
                               .wanted = wanted,
                               .constant = constant,
                               .count = 1,
                               .rounding = Rounding::nearest_even};
  add_converts(program, std::span(&request, 1), 0);
  run_value_on_host(
      program.launches.at(0),
      {program.bytes.data(), reinterpret_cast<std::byte*>(from), reinterpret_cast<std::byte*>(to)});
  EXPECT_EQ(to[0], 0U);
  return static_cast<std::uint32_t>(to[2]);
}

std::uint64_t f32(float value) { return std::bit_cast<std::uint32_t>(value); }

TEST(ConvertProgram, RoundingToNearestEvenInWorkedExamples) {
  EXPECT_EQ(rounded(DType::f32, 0x3f808000, 0, DType::bf16), 0x3f80U)
      << "a tie goes to the even code";
  EXPECT_EQ(rounded(DType::f32, 0x3f818000, 0, DType::bf16), 0x3f82U);
  EXPECT_EQ(rounded(DType::f32, 0x3f808001, 0, DType::bf16), 0x3f81U);
  EXPECT_EQ(rounded(DType::f32, 0xbf817fff, 0, DType::bf16), 0xbf81U);
  EXPECT_EQ(rounded(DType::f32, 0x7f7fffff, 0, DType::bf16), 0x7f80U)
      << "beyond the largest number is infinity";
  EXPECT_EQ(rounded(DType::f32, f32(65519.996F), 0, DType::f16), 0x7bffU);
  EXPECT_EQ(rounded(DType::f32, f32(65520), 0, DType::f16), 0x7c00U);
  EXPECT_EQ(rounded(DType::f32, f32(std::ldexp(1.0F, -25)), 0, DType::f16), 0x0000U)
      << "half of the smallest number";
  EXPECT_EQ(rounded(DType::f32, f32(std::ldexp(1.5F, -25)), 0, DType::f16), 0x0001U);
  EXPECT_EQ(rounded(DType::f32, 0x7f800001, 0, DType::bf16), 0x7fc0U) << "a NaN stays one";
  EXPECT_EQ(rounded(DType::f32, 0xffa5ffff, 0, DType::bf16), 0xffa5U);
}

TEST(ConvertProgram, ASumIsRoundedOnce) {
  // 1 + 2^-8 is a tie of BF16; what a double cannot hold beside it still says where it goes.
  double const tie = 1 + std::ldexp(1.0, -8);
  EXPECT_EQ(rounded(DType::f32, f32(0), tie, DType::bf16), 0x3f80U);
  EXPECT_EQ(rounded(DType::f32, f32(std::ldexp(1.0F, -100)), tie, DType::bf16), 0x3f81U);
  EXPECT_EQ(rounded(DType::f32, f32(std::ldexp(-1.0F, -100)), tie, DType::bf16), 0x3f80U);
  EXPECT_EQ(rounded(DType::f32, f32(std::ldexp(-1.0F, -100)), -tie, DType::bf16), 0xbf81U);
  EXPECT_EQ(rounded(DType::f32, f32(std::ldexp(1.0F, -100)), 1 + std::ldexp(3.0, -8), DType::bf16),
            0x3f82U);
  EXPECT_EQ(rounded(DType::f32, f32(std::ldexp(-1.0F, -100)), 1 + std::ldexp(3.0, -8), DType::bf16),
            0x3f81U);
}

TEST(ConvertProgram, WhatHasNoKernelIsOurBug) {
  Program program;
  ConvertRequest request{.stored = DType::bf16, .wanted = DType::f8_e4m3, .count = 1};
  EXPECT_THROW(add_converts(program, std::span(&request, 1), 0), Error);
  request = {.stored = DType::bf16,
             .wanted = DType::f32,
             .constant = std::numeric_limits<double>::infinity(),
             .count = 1};
  EXPECT_THROW(add_converts(program, std::span(&request, 1), 0), Error);
  request.constant = 0;
  EXPECT_THROW(add_converts(program, std::span(&request, 1), 4), Error) << "a verdict across words";
  request.count = 0;
  add_converts(program, std::span(&request, 1), 0);
  EXPECT_TRUE(program.launches.empty()) << "nothing to do";
}

TEST(DequantiseProgram, EveryFormAgreesWithTheHostBitForBit) {
  std::uint64_t const seed = std::random_device{}();
  for (DeviceCase const& device : test::dequantise_cases(seed)) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ASSERT_NO_FATAL_FAILURE(expect_result(device));
  }
}

}  // namespace
}  // namespace reshard
