#include "stages/verify/surveys/value_survey.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "core/base/error.hpp"
#include "core/base/hash/crc64.hpp"
#include "core/base/tables/integers.hpp"
#include "core/quant/wide_vectors.hpp"
#include "stages/verify/surveys/compare_stats.hpp"

namespace reshard {
namespace {

/// The bytes that a thread takes at a time.
constexpr std::uint64_t part_bytes = std::uint64_t{1} << 20;

/// The bits of exponent and mantissa of a format.
template <class Code>
struct FloatBits {
  Code exponent;
  Code mantissa;
};

/// Counts at most as many codes as a Code can count: sums of the width of the codes make full
/// vectors.
template <class Code>
void count_block(SliceValues& found, std::span<std::byte const> bytes, Code first,
                 FloatBits<Code> bits) {
  Code other = 0;
  Code nan = 0;
  Code infinite = 0;
  Code zero = 0;
  Code small = 0;  // with an exponent of zero
  Code negative = 0;
  quant::with_wide_vectors([&, codes = bytes.data(), count = bytes.size() / sizeof(Code)] {
    Code const sign = static_cast<Code>(~(bits.exponent | bits.mantissa));
    Code sums[6] = {};
    for (std::size_t i = 0; i < count; ++i) {
      Code code;
      std::memcpy(&code, codes + i * sizeof code, sizeof code);
      auto const size = static_cast<Code>(code & ~sign);
      auto const below_zero = static_cast<Code>(code - sign - 1);
      sums[0] = static_cast<Code>(sums[0] | (code ^ first));
      sums[1] = static_cast<Code>(sums[1] + (size > bits.exponent));
      sums[2] = static_cast<Code>(sums[2] + (size == bits.exponent));
      sums[3] = static_cast<Code>(sums[3] + (size == 0));
      sums[4] = static_cast<Code>(sums[4] + (size <= bits.mantissa));
      sums[5] = static_cast<Code>(sums[5] + (below_zero < bits.exponent));
    }
    other = sums[0], nan = sums[1], infinite = sums[2], zero = sums[3], small = sums[4];
    negative = sums[5];
  });
  found.nan += nan;
  found.infinite += infinite;
  found.zero += zero;
  found.subnormal += static_cast<Code>(small - zero);
  found.negative += negative;
  if (other != 0) found.uniform = 0;
}

template <class Code>
void count_codes(SliceValues& found, std::span<std::byte const> bytes, FloatBits<Code> bits) {
  constexpr std::size_t most = (std::size_t{1} << 15U) * sizeof(Code);
  Code first = 0;
  std::memcpy(&first, bytes.data(), sizeof first);
  found.first = first;
  found.elements = bytes.size() / sizeof(Code);
  for (std::size_t at = 0; at < bytes.size(); at += most)
    count_block(found, bytes.subspan(at, std::min(most, bytes.size() - at)), first, bits);
}

/// Integers: zeros, and whether all are the same.
template <class Code>
void count_integers(SliceValues& found, std::span<std::byte const> bytes) {
  std::memcpy(&found.first, bytes.data(), sizeof(Code));
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Code)) {
    Code code = 0;
    std::memcpy(&code, bytes.data() + at, sizeof code);
    found.zero += static_cast<std::uint64_t>(code == 0);
    if (code != found.first) found.uniform = 0;
  }
  found.elements = bytes.size() / sizeof(Code);
}

/// Formats of one byte, by their values.
void count_bytes(SliceValues& found, DType dtype, std::span<std::byte const> bytes) {
  // Sums of its own for each of four neighbours: one need not wait for the other.
  std::array<std::array<std::uint64_t, 256>, 4> counts{};
  for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4)
    for (std::size_t k = 0; k < 4; ++k) ++counts[k][std::to_integer<unsigned>(bytes[at + k])];
  for (std::byte const byte : bytes.last(bytes.size() % 4))
    ++counts[0][std::to_integer<unsigned>(byte)];
  std::array<std::uint64_t, 256> count{};
  for (std::size_t code = 0; code < count.size(); ++code)
    for (auto const& part : counts) count[code] += part[code];
  found.elements = bytes.size();
  found.first = std::to_integer<std::uint64_t>(bytes.front());
  found.uniform = count[found.first] == bytes.size() ? 1 : 0;
  for (unsigned code = 0; code < count.size(); ++code) {
    if (count[code] == 0) continue;
    std::byte const byte{static_cast<unsigned char>(code)};
    double value = 0;
    decode_values(dtype, std::span(&byte, 1), std::span(&value, 1));
    if (std::isnan(value)) found.nan += count[code];
    if (std::isinf(value)) found.infinite += count[code];
    if (value == 0) found.zero += count[code];
  }
}

}  // namespace

void SliceValues::add(SliceValues const& other) {
  if (other.elements == 0) return;
  if (elements == 0) first = other.first;
  uniform = uniform != 0 && other.uniform != 0 && first == other.first ? 1 : 0;
  elements += other.elements;
  nan += other.nan;
  infinite += other.infinite;
  zero += other.zero;
  subnormal += other.subnormal;
  negative += other.negative;
  crc64 ^= other.crc64;
}

SliceValues values_of(DType dtype, std::span<std::byte const> bytes) {
  SliceValues found;
  if (bytes.empty()) return found;
  switch (dtype) {
    case DType::bf16: count_codes<std::uint16_t>(found, bytes, {0x7f80, 0x007f}); break;
    case DType::f16: count_codes<std::uint16_t>(found, bytes, {0x7c00, 0x03ff}); break;
    case DType::f32: count_codes<std::uint32_t>(found, bytes, {0x7f800000, 0x007fffff}); break;
    case DType::f64:
      count_codes<std::uint64_t>(found, bytes, {0x7ff0000000000000U, 0x000fffffffffffffU});
      break;
    case DType::i16:
    case DType::u16: count_integers<std::uint16_t>(found, bytes); break;
    case DType::i32:
    case DType::u32: count_integers<std::uint32_t>(found, bytes); break;
    case DType::i64:
    case DType::u64: count_integers<std::uint64_t>(found, bytes); break;
    default:
      if (has_values(dtype) && bits(dtype) == 8) {
        count_bytes(found, dtype, bytes);
      } else {
        found.elements = bytes.size();
        found.uniform = 0;
      }
  }
  return found;
}

ValueSurvey::ValueSurvey(std::vector<SurveyedTensor> tensors, std::size_t threads)
    : tensors_(std::move(tensors)), workers_(threads) {
  first_.push_back(0);
  for (SurveyedTensor const& tensor : tensors_) first_.push_back(first_.back() + tensor.slices);
  slices_.resize(first_.back());
  for (std::size_t i = 0; i < slices_.size(); ++i) slices_[i].slice = i;
}

void ValueSurvey::take(std::span<Stretch const> stretches) {
  std::vector<Stretch> parts;
  for (Stretch const& stretch : stretches) {
    std::uint64_t const slice_bytes = tensors_[stretch.tensor].slice_bytes;
    for (std::uint64_t at = 0; at < stretch.bytes.size();) {
      std::uint64_t const offset = stretch.offset_bytes + at;
      std::uint64_t const bytes =
          std::min({part_bytes, stretch.bytes.size() - at, slice_bytes - offset % slice_bytes});
      parts.push_back({stretch.tensor, offset, stretch.bytes.subspan(at, bytes)});
      at += bytes;
    }
  }
  workers_.run(parts.size(), [&](std::size_t i, std::size_t) { take_part(parts[i]); });
}

/// Bytes of one slice.
void ValueSurvey::take_part(Stretch const& part) {
  SurveyedTensor const& tensor = tensors_[part.tensor];
  SliceValues found = values_of(tensor.dtype, part.bytes);
  std::uint64_t const behind =
      tensor.slice_bytes - part.offset_bytes % tensor.slice_bytes - part.bytes.size();
  found.crc64 = crc64_shifted(crc64(part.bytes), behind);
  std::scoped_lock const lock(mutex_);
  slices_[first_[part.tensor] + part.offset_bytes / tensor.slice_bytes].add(found);
}

std::vector<SliceValues> ValueSurvey::merged(Comm const& comm) const {
  std::string own;
  for (SliceValues const& slice : slices_)
    if (slice.elements > 0) own.append(reinterpret_cast<char const*>(&slice), sizeof slice);
  std::vector<SliceValues> all(slices_.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].slice = i;
  for (std::string const& bytes : comm.all_gather(own))
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(SliceValues)) {
      SliceValues slice;
      std::memcpy(&slice, bytes.data() + at, sizeof slice);
      RESHARD_EXPECT(slice.slice < all.size());
      all[slice.slice].add(slice);
    }
  return all;
}

}  // namespace reshard
