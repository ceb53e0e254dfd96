#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/base/tables/integers.hpp"
#include "core/quant/encode/nearest_codes.hpp"
#include "core/quant/encode/scale_rules.hpp"
#include "core/quant/encode/weight_numbers.hpp"

namespace reshard::quant {

/// Codes of E4M3 of BF16 weights, without arithmetic of floats for each.
///
/// Twice the weight has twice the quotient, and while that is a normal number of E4M3, a code that
/// is higher by the eight steps of a power of two. So a code is that of the weight's power of two
/// and steps that its fraction of seven bits decides: a table of 128 for each factor.
struct FractionSteps {
  alignas(64) std::array<std::uint8_t, 128> of_fraction{};
  std::uint32_t fraction = ~0U;  ///< of the factor that the table is of

  /// Makes the table for a factor, unless it is that of the same digits already.
  template <scale_rules::Step step>
  [[gnu::always_inline]] void make(float factor) {
    std::uint32_t const digits = std::bit_cast<std::uint32_t>(factor) & 0x7fffffU;
    if (digits == fraction) return;
    fraction = digits;
    float const unit = std::bit_cast<float>(0x3f800000U | digits);
    for (std::uint32_t f = 0; f < of_fraction.size(); ++f) {
      float const weight = std::bit_cast<float>(0x3f800000U | f << 16U);
      float const value = scale_rules::scaled<weights::Bf16, step>(weight, unit);
      of_fraction[f] = static_cast<std::uint8_t>(e4m3_of(value) - first_code<step>());
    }
  }

  /// The code of a weight with exponent field 0 and no steps, below zero; nothing (0) for a factor
  /// with which a weight that is not a normal number might have a normal code.
  template <scale_rules::Step step>
  static std::int16_t base(float factor) {
    auto const field = static_cast<int>(std::bit_cast<std::uint32_t>(factor) >> 23U);
    int const exponent = step == scale_rules::Step::multiply ? field - 127 : 127 - field;
    int const base = first_code<step>() + 8 * (exponent - 127);
    bool const usual = field > 0 && field < 255 && base <= -24;
    return static_cast<std::int16_t>(usual ? base : 0);
  }

 private:
  /// The least code of a weight in [1, 2) and a factor in [1, 2): that of 1, or of 1/2.
  template <scale_rules::Step step>
  static constexpr int first_code() {
    return step == scale_rules::Step::multiply ? 0x38 : 0x30;
  }
};

#if defined(__x86_64__)
/// Writes codes of as many of the weights as it can, and returns how many: some 32, up to the first
/// 32 among which is one that is not zero and has no normal code. Pre: the processor has
/// Vectors::avx512, and base is not 0.
[[gnu::target("avx512bw,avx512vl,avx512vbmi")]] inline Index encode_by_steps(
    std::byte const* weights, Index count, FractionSteps const& steps, std::int16_t base,
    std::byte* codes) {
  constexpr Index group = 32;
  constexpr __mmask64 low_bytes = 0x5555555555555555U;
  __m512i const lower = _mm512_load_si512(steps.of_fraction.data());
  __m512i const upper = _mm512_load_si512(steps.of_fraction.data() + 64);
  __m512i const offset = _mm512_set1_epi16(base);
  __m512i const exponents = _mm512_set1_epi16(0x7f8);
  __m512i const magnitude = _mm512_set1_epi16(0x7fff);
  __m512i const least = _mm512_set1_epi16(8);    // that of the least normal number
  __m512i const most = _mm512_set1_epi16(0x7e);  // that of 448
  __m512i const signs = _mm512_set1_epi16(0x80);
  Index done = 0;
  for (; done + group <= count; done += group) {
    __m512i const weight = _mm512_loadu_si512(weights + 2 * done);
    // The lowest seven bits of a byte choose an element of the table.
    __m512i const found = _mm512_maskz_permutex2var_epi8(low_bytes, lower, weight, upper);
    __m512i const of_power = _mm512_and_si512(_mm512_srli_epi16(weight, 4), exponents);
    __m512i const code = _mm512_add_epi16(_mm512_add_epi16(of_power, offset), found);
    __mmask32 const small = _mm512_cmplt_epi16_mask(code, least);
    if (_mm512_mask_test_epi16_mask(small, weight, magnitude) != 0) break;
    __m512i const bounded = _mm512_max_epi16(_mm512_min_epi16(code, most), _mm512_setzero_si512());
    __m512i const sign = _mm512_and_si512(_mm512_srli_epi16(weight, 8), signs);
    __m256i const bytes = _mm512_maskz_cvtepi16_epi8(~__mmask32{0}, _mm512_or_si512(bounded, sign));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + done), bytes);
  }
  return done;
}
#else
inline Index encode_by_steps(std::byte const*, Index, FractionSteps const&, std::int16_t,
                             std::byte*) {
  return 0;
}
#endif

}  // namespace reshard::quant
