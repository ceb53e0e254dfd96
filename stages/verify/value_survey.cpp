#include "stages/verify/value_survey.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "core/base/crc64.hpp"
#include "core/base/error.hpp"
#include "core/base/integers.hpp"
#include "stages/verify/compare_stats.hpp"

namespace reshard {
namespace {

/// What a thread takes at a time.
constexpr std::uint64_t part_bytes = std::uint64_t{1} << 20;

/// Where exponent and mantissa of a format are.
template <class Code>
struct FloatBits {
  Code exponent;
  Code mantissa;
};

template <class Code>
void count_codes(SliceValues& found, std::span<std::byte const> bytes, FloatBits<Code> bits) {
  Code first = 0;
  std::memcpy(&first, bytes.data(), sizeof first);
  Code other = 0;
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
  std::uint64_t zero = 0;
  std::uint64_t subnormal = 0;
  std::uint64_t negative = 0;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Code)) {
    Code code = 0;
    std::memcpy(&code, bytes.data() + at, sizeof code);
    other |= static_cast<Code>(code ^ first);
    bool const no_mantissa = (code & bits.mantissa) == 0;
    bool const top = (code & bits.exponent) == bits.exponent;
    bool const bottom = (code & bits.exponent) == 0;
    nan += static_cast<std::uint64_t>(top && !no_mantissa);
    infinite += static_cast<std::uint64_t>(top && no_mantissa);
    zero += static_cast<std::uint64_t>(bottom && no_mantissa);
    subnormal += static_cast<std::uint64_t>(bottom && !no_mantissa);
    bool const sign = (code & static_cast<Code>(~(bits.exponent | bits.mantissa))) != 0;
    negative +=
        static_cast<std::uint64_t>(sign && !(bottom && no_mantissa) && !(top && !no_mantissa));
  }
  found.elements = bytes.size() / sizeof(Code);
  found.nan = nan;
  found.infinite = infinite;
  found.zero = zero;
  found.subnormal = subnormal;
  found.negative = negative;
  found.first = first;
  found.uniform = other == 0 ? 1 : 0;
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
  std::array<std::uint64_t, 256> count{};
  for (std::byte const byte : bytes) ++count[std::to_integer<unsigned>(byte)];
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
