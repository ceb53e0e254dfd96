#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/host_device.hpp"
#include "core/device/kernels/request_blocks.hpp"
#include "core/device/kernels/value_groups.hpp"
#include "core/quant/convert_element.hpp"

namespace reshard {

/// The input of the convert kernels: one descriptor for each request, those of one pair of dtypes
/// in a launch. Offsets count from LaunchPlaces::from and ::to.
struct ConvertDescriptor {
  std::uint64_t first_block = 0;
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t count = 0;
  double constant = 0;
  std::uint64_t request = 0;
  std::uint64_t verdict = 0;
  std::uint64_t rounds = 0;  ///< 1 if inexact elements are rounded without a report
};

/// The first inexact element of several launches is the one with the largest mark. 0 is none.
inline constexpr unsigned element_bits_of_mark = 40;
inline constexpr std::uint64_t requests_of_marks =
    (std::uint64_t{1} << (64 - element_bits_of_mark)) - 1;
inline constexpr std::uint64_t elements_of_marks = std::uint64_t{1} << element_bits_of_mark;

/// Pre: request < requests_of_marks, element < elements_of_marks.
constexpr std::uint64_t inexact_mark(std::uint64_t request, std::uint64_t element) {
  return ~(request << element_bits_of_mark | element);
}

/// The kernel of one pair of formats.
template <quant::FloatFormat source, quant::FloatFormat target>
struct ConvertKernel {
  static constexpr auto source_bytes = static_cast<unsigned>(source.bits() / 8);
  static constexpr auto target_bytes = static_cast<unsigned>(target.bits() / 8);
  static constexpr unsigned group_size = 16 / target_bytes;

  /// The work of one thread; returns the mark of its first inexact element that is to be reported.
  RESHARD_HOST_DEVICE static std::uint64_t run(ConvertDescriptor const& request,
                                               LaunchPlaces const& places, std::uint64_t block,
                                               unsigned thread) {
    std::byte const* const from = places.from + request.from;
    std::byte* const to = places.to + request.to;
    std::uint64_t mark = 0;
    for (unsigned round = 0; round < groups_per_thread; ++round) {
      std::uint64_t const number = group_number(block - request.first_block, round, thread);
      ElementGroup const group = group_of<target_bytes>(number, request.count, to);
      if (group.begin >= group.end) break;
      std::byte const* const source_place = from + group.begin * source_bytes;
      std::byte* const target_place = to + group.begin * target_bytes;
      std::uint64_t const inexact =
          group.whole
              ? run_whole(source_place, target_place, request.constant)
              : run_part(source_place, target_place, request.constant, group.end - group.begin);
      if (inexact != none && mark == 0 && request.rounds == 0)
        mark = inexact_mark(request.request, group.begin + inexact);
    }
    return mark;
  }

 private:
  static constexpr std::uint64_t none = ~std::uint64_t{0};

  RESHARD_HOST_DEVICE static quant::Encoded convert(std::byte const* from, double constant) {
    std::uint64_t code = 0;
    std::memcpy(&code, from, source_bytes);
    return quant::convert_element(source, target, code, constant);
  }

  /// Both return the number of the first inexact element within the group.
  RESHARD_HOST_DEVICE static std::uint64_t run_whole(std::byte const* from, std::byte* to,
                                                     double constant) {
    alignas(16) std::byte codes[group_size * source_bytes];
    alignas(16) std::byte results[16];
    load_bytes<group_size * source_bytes>(from, codes);
    std::uint32_t inexact = 0;
    unrolled<group_size>([&](auto i) {
      quant::Encoded const encoded = convert(codes + i * source_bytes, constant);
      std::memcpy(results + i * target_bytes, &encoded.code, target_bytes);
      inexact |= (encoded.exact ? 0U : 1U) << i;
    });
    Quad word;
    std::memcpy(&word, results, 16);
    store_word(to, word);
    return first_of(inexact);
  }

  RESHARD_HOST_DEVICE static std::uint64_t run_part(std::byte const* from, std::byte* to,
                                                    double constant, std::uint64_t count) {
    std::uint32_t inexact = 0;
    for (unsigned i = 0; i < count; ++i) {
      quant::Encoded const encoded = convert(from + i * source_bytes, constant);
      std::memcpy(to + i * target_bytes, &encoded.code, target_bytes);
      inexact |= (encoded.exact ? 0U : 1U) << i;
    }
    return first_of(inexact);
  }

  RESHARD_HOST_DEVICE static std::uint64_t first_of(std::uint32_t inexact) {
    if (inexact == 0) return none;
    std::uint64_t element = 0;
    while ((inexact >> element & 1U) == 0) ++element;
    return element;
  }
};

// Launch::variant: the numbers of the two formats in these orders.
inline constexpr unsigned stored_formats = 6;
inline constexpr unsigned wanted_formats = 4;

/// The first four are the wanted ones, too.
constexpr quant::FloatFormat convert_format(unsigned number) {
  switch (number) {
    case 0: return quant::formats::f64;
    case 1: return quant::formats::f32;
    case 2: return quant::formats::bf16;
    case 3: return quant::formats::f16;
    case 4: return quant::formats::e5m2;
    default: return quant::formats::e4m3;
  }
}

/// Calls run(ConvertKernel<…>{}) of a variant; false if there is none.
template <unsigned number = 0, class Run>
bool visit_convert(unsigned variant, Run&& run) {
  if constexpr (number == stored_formats * wanted_formats) {
    return false;
  } else {
    if (variant != number) return visit_convert<number + 1>(variant, run);
    run(ConvertKernel<convert_format(number / wanted_formats),
                      convert_format(number % wanted_formats)>{});
    return true;
  }
}

}  // namespace reshard
