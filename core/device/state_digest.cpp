#include "core/device/state_digest.hpp"

#include <algorithm>
#include <cstring>

#include "core/device/strided_digest.hpp"
#include "core/quant/rounded.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t f32_bytes = 4;
constexpr std::uint64_t half_bytes = 2;

/// Calls run(address, offset in the tensor) for each run, until it returns false.
template <class Run>
bool each_run(std::span<ByteDim const> dims, std::byte const* from, std::uint64_t at,
              Run const& run) {
  if (dims.empty()) return run(from, at);
  for (std::uint64_t i = 0; i < dims[0].count; ++i) {
    auto const index = static_cast<std::int64_t>(i);
    if (!each_run(dims.subspan(1), from + index * dims[0].from_stride,
                  at + static_cast<std::uint64_t>(index * dims[0].to_stride), run))
      return false;
  }
  return true;
}

std::uint32_t bits_at(std::byte const* from, std::uint64_t i) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, from + f32_bytes * i, sizeof bits);
  return bits;
}

template <class Convert>
void convert_run(std::byte const* from, std::byte* into, std::uint64_t count,
                 Convert const& convert) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint16_t const rounded = convert(bits_at(from, i));
    std::memcpy(into + half_bytes * i, &rounded, sizeof rounded);
  }
}

bool is_moment(std::uint32_t bits) { return bits < 0x7f800000U || bits == 0x80000000U; }

/// Whether all of a run are: without a branch for each.
bool are_moments(std::byte const* from, std::uint64_t count) {
  std::uint32_t wrong = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t const bits = bits_at(from, i);
    wrong |= static_cast<std::uint32_t>(bits >= 0x7f800000U) &
             static_cast<std::uint32_t>(bits != 0x80000000U);
  }
  return wrong == 0;
}

}  // namespace

/// Runs are rounded into a block without gaps, whose runs have half the strides in the tensor.
std::uint64_t rounded_digest(DType to, std::byte const* from, std::uint64_t run_bytes,
                             std::span<ByteDim const> dims, std::uint64_t after_bytes,
                             std::vector<std::byte>& block) {
  std::vector<ByteDim> packed(dims.begin(), dims.end());
  std::uint64_t bytes = run_bytes / 2;
  for (std::size_t d = packed.size(); d-- > 0;) {
    packed[d].from_stride = static_cast<std::int64_t>(bytes);
    packed[d].to_stride /= 2;
    bytes *= packed[d].count;
  }
  block.resize(std::max<std::size_t>(block.size(), bytes));
  std::byte* into = block.data();
  each_run(dims, from, 0, [&](std::byte const* run, std::uint64_t) {
    std::uint64_t const count = run_bytes / f32_bytes;
    if (to == DType::bf16)
      convert_run(run, into, count, quant::bf16_of);
    else
      convert_run(run, into, count, quant::f16_of);
    into += run_bytes / 2;
    return true;
  });
  return strided_digest(block.data(), run_bytes / 2, packed, after_bytes / 2);
}

std::optional<WrongMoment> wrong_moment(std::byte const* from, std::uint64_t run_bytes,
                                        std::span<ByteDim const> dims) {
  std::optional<WrongMoment> found;
  each_run(dims, from, 0, [&](std::byte const* run, std::uint64_t at) {
    std::uint64_t const count = run_bytes / f32_bytes;
    if (are_moments(run, count)) return true;
    for (std::uint64_t i = 0; !found; ++i) {
      std::uint32_t const bits = bits_at(run, i);
      if (is_moment(bits)) continue;
      found = WrongMoment{0, at + f32_bytes * i};
      std::memcpy(&found->value, &bits, sizeof bits);
    }
    return false;
  });
  return found;
}

}  // namespace reshard
