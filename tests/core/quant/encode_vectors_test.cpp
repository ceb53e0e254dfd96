#include "core/quant/encode/encode.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/quant/number_formats.hpp"
#include "core/quant/wide_vectors.hpp"
#include "tests/core/quant/encoded.hpp"

// Codes are the same with any vectors that the processor has.
namespace reshard::quant {
namespace {

/// The same with narrower vectors than the processor has.
Made made_with(Vectors vectors, Encoding const& encoding, DType dtype,
               std::vector<std::byte> const& weights, Index rows, Index columns) {
  Vectors const widest = widest_vectors;
  widest_vectors = std::min(widest, vectors);
  Made made = made_of(encoding, dtype, weights, rows, columns);
  widest_vectors = widest;
  return made;
}

void expect_same_with_all_vectors(Encoding const& encoding, DType dtype,
                                  std::vector<std::byte> const& weights, Index rows,
                                  Index columns) {
  Made const plain = made_with(Vectors::plain, encoding, dtype, weights, rows, columns);
  for (Vectors const vectors : {Vectors::avx2, Vectors::avx512}) {
    Made const made = made_with(vectors, encoding, dtype, weights, rows, columns);
    ASSERT_EQ(made.scales, plain.scales);
    if (made.codes == plain.codes) continue;
    auto const [one, other] = std::ranges::mismatch(made.codes, plain.codes);
    FAIL() << "code " << one - made.codes.begin() << " of the rule "
           << static_cast<int>(encoding.rule) << ": " << int{*one} << " is not " << int{*other};
  }
}

/// Every BF16 of at most `largest`, both signs; neighbours are of one size.
std::vector<std::uint16_t> all_up_to(std::uint16_t largest) {
  std::vector<std::uint16_t> all;
  for (std::uint32_t code = 0; code <= largest; ++code)
    for (std::uint32_t const sign : {0U, 0x8000U})
      all.push_back(static_cast<std::uint16_t>(code | sign));
  return all;
}

Encoding const blocks_of_transformers{CodeKind::e4m3, ScaleRule::reciprocal, 1, 0, DType::f32};
Encoding const rows_of_modelopt{CodeKind::e4m3, ScaleRule::wide_quotient, 1, 0, DType::f32};
Encoding const rows_of_tensors{CodeKind::e4m3, ScaleRule::quotient, 1, 0, DType::bf16};

// Every exponent of a block's largest weight and some of its fractions; with each of them every
// weight that the block can have.
TEST(EncodeVectorsTest, EveryBf16HasTheSameCodeWithAllVectors) {
  std::mt19937 digits(3);
  auto const random = [&] { return static_cast<std::uint32_t>(digits()); };
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (std::uint32_t const fraction : {0U, random() % 128U}) {
      auto const largest = static_cast<std::uint16_t>(exponent << 7U | fraction);
      std::vector<std::uint16_t> const weights = all_up_to(largest);
      auto const columns = static_cast<Index>(weights.size());
      for (Encoding const& encoding : {blocks_of_transformers, rows_of_modelopt, rows_of_tensors})
        ASSERT_NO_FATAL_FAILURE(
            expect_same_with_all_vectors(encoding, DType::bf16, bytes_of(weights), 1, columns))
            << largest;
    }
  }
}

// One scale for each of 32 weights, and powers of two.
TEST(EncodeVectorsTest, ShortBlocksHaveTheSameCodesWithAllVectors) {
  std::mt19937 digits(4);
  auto const random = [&] { return static_cast<std::uint32_t>(digits()); };
  std::vector<std::uint16_t> weights;
  for (std::uint32_t block = 0; block < 4096; ++block) {
    std::uint32_t const bound = 1 + random() % 0x7f7fU;
    for (int i = 0; i < 32; ++i)
      weights.push_back(static_cast<std::uint16_t>(
          (random() % 4 == 0 ? random() % (bound + 1) : bound - std::min(bound, random() % 1024U)) |
          (random() & 0x8000U)));
  }
  std::vector<Encoding> encodings;
  for (ScaleRule const rule : {ScaleRule::power, ScaleRule::power_above})
    for (CodeKind const codes : {CodeKind::e4m3, CodeKind::e2m1})
      encodings.push_back({codes, rule, 1, 32, DType::u8});
  encodings.push_back({CodeKind::e4m3, ScaleRule::reciprocal, 1, 32, DType::f8_e8m0});
  encodings.push_back({CodeKind::e4m3, ScaleRule::reciprocal, 1, 32, DType::f32});
  encodings.push_back({CodeKind::e4m3, ScaleRule::reciprocal, 64, 64, DType::f32});
  encodings.push_back({CodeKind::e4m3, ScaleRule::quotient, 40, 33, DType::bf16});
  encodings.push_back({CodeKind::packed, ScaleRule::quotient, 1, 32, DType::bf16});
  encodings.push_back({CodeKind::i8, ScaleRule::quotient, 1, 0, DType::bf16, 8});
  for (Encoding const& encoding : encodings)
    for (Index const columns : {32, 512, 1000}) {
      Index const rows = static_cast<Index>(weights.size()) / columns;
      ASSERT_NO_FATAL_FAILURE(expect_same_with_all_vectors(
          encoding, DType::bf16,
          bytes_of(std::vector(weights.begin(), weights.begin() + rows * columns)), rows, columns));
    }
}

// Numbers of F32 beside the middles of codes, times scales of all sizes.
TEST(EncodeVectorsTest, F32BesideMiddlesHasTheSameCodesWithAllVectors) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    float const scale = std::ldexp(1.0F + static_cast<float>(random() % 4096) / 4096.0F,
                                   static_cast<int>(random() % 240) - 130);
    std::vector<float> weights{448 * scale};
    for (unsigned code = 0; code + 1 < 0x7f; ++code) {
      float const middle =
          static_cast<float>((decode(formats::e4m3, code) + decode(formats::e4m3, code + 1)) / 2);
      for (float near = middle * scale; float const end : {0.0F, 500 * scale})
        for (int step = 0; step < 3; ++step) {
          weights.push_back(near);
          near = std::nextafter(near, end);
        }
    }
    auto const columns = static_cast<Index>(weights.size());
    for (Encoding encoding : {blocks_of_transformers, rows_of_modelopt, rows_of_tensors}) {
      encoding.scales = DType::f32;
      ASSERT_NO_FATAL_FAILURE(
          expect_same_with_all_vectors(encoding, DType::f32, bytes_of(weights), 1, columns));
    }
  }
}

// The quotient by itself, as PyTorch computes it, for every BF16 of some blocks.
TEST(EncodeVectorsTest, CodesOfBf16AreThoseOfTheQuotients) {
  for (std::uint32_t const largest : {0x3f80U, 0x3e9bU, 0x0105U, 0x7f7fU, 0x4013U}) {
    std::vector<std::uint16_t> const weights = all_up_to(static_cast<std::uint16_t>(largest));
    auto const most = static_cast<float>(decode(formats::bf16, largest));
    Made const made = made_of(rows_of_modelopt, DType::bf16, bytes_of(weights), 1,
                              static_cast<Index>(weights.size()));
    ASSERT_EQ(made.scale<float>(0), most / 448.0F);
    for (std::size_t i = 0; i < weights.size(); i += 7) {
      auto const weight = static_cast<float>(decode(formats::bf16, weights[i]));
      ASSERT_EQ(made.codes[i], nearest_e4m3(weight / (most / 448.0F))) << weights[i];
    }
  }
}

}  // namespace
}  // namespace reshard::quant
