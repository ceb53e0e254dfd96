#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/quant/encode/encode.hpp"
#include "core/quant/number_formats.hpp"
#include "core/quant/rounded.hpp"

// What tests of quantising share.
namespace reshard::quant {

inline std::uint16_t bf16_code(double value) {
  return bf16_of(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
}

struct Made {
  std::vector<std::uint8_t> codes;
  std::vector<std::byte> scales;
  std::optional<Inexact> special;

  template <class T>
  T scale(std::size_t block) const {
    T value;
    std::memcpy(&value, scales.data() + block * sizeof value, sizeof value);
    return value;
  }
};

inline Made made_of(Encoding const& encoding, DType dtype, std::vector<std::byte> const& weights,
                    Index rows, Index columns) {
  Encoder const encoder(encoding, dtype, columns);
  Made made;
  Index const bands = (rows + encoding.block_rows - 1) / encoding.block_rows;
  made.codes.resize(static_cast<std::size_t>(rows * encoder.code_row_bytes()));
  made.scales.resize(static_cast<std::size_t>(bands * encoder.scale_row_bytes()));
  made.special =
      encoder.run(rows, weights, std::as_writable_bytes(std::span(made.codes)), made.scales);
  return made;
}

template <class T>
std::vector<std::byte> bytes_of(std::vector<T> const& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Of the codes of E4M3 the nearest, of two the even one, by their values.
inline std::uint8_t nearest_e4m3(double value) {
  std::uint8_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (unsigned code = 0; code < 0x7f; ++code) {
    double const distance = std::abs(std::abs(value) - decode(formats::e4m3, code));
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = static_cast<std::uint8_t>(code);
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

}  // namespace reshard::quant
