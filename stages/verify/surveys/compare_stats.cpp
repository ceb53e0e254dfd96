#include "stages/verify/surveys/compare_stats.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/base/error.hpp"
#include "core/quant/number_formats.hpp"

namespace reshard {
namespace {

using quant::FloatFormat;
namespace formats = quant::formats;

template <class Number>
void decode_numbers(std::span<std::byte const> from, std::span<double> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Number number;
    std::memcpy(&number, from.data() + i * sizeof number, sizeof number);
    values[i] = static_cast<double>(number);
  }
}

void decode_bf16(std::span<std::byte const> from, std::span<double> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, from.data() + i * sizeof code, sizeof code);
    values[i] = static_cast<double>(std::bit_cast<float>(std::uint32_t{code} << 16U));
  }
}

void decode_f16(std::span<std::byte const> from, std::span<double> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, from.data() + i * sizeof code, sizeof code);
    values[i] = quant::decode(formats::f16, code);
  }
}

/// The "fnuz" formats: finite numbers only, except for a NaN in the place of -0; the bias is one
/// larger than IEEE 754 would have it.
double decode_fnuz(FloatFormat format, unsigned code) {
  if (code == 0x80U) return std::numeric_limits<double>::quiet_NaN();
  FloatFormat finite = format;
  finite.specials = quant::Specials::none;
  return quant::decode(finite, code) / 2;
}

double decode_byte(DType dtype, unsigned code) {
  switch (dtype) {
    case DType::f8_e4m3: return quant::decode(formats::e4m3, code);
    case DType::f8_e5m2: return quant::decode(formats::e5m2, code);
    case DType::f8_e8m0: return quant::decode_e8m0(static_cast<std::uint8_t>(code));
    case DType::f8_e4m3fnuz: return decode_fnuz(formats::e4m3, code);
    case DType::f8_e5m2fnuz: return decode_fnuz(formats::e5m2, code);
    case DType::boolean: return code != 0 ? 1 : 0;
    case DType::i8: return static_cast<double>(static_cast<std::int8_t>(code));
    default: return code;
  }
}

void decode_bytes(DType dtype, std::span<std::byte const> from, std::span<double> values) {
  std::array<double, 256> table{};
  for (unsigned code = 0; code < table.size(); ++code) table[code] = decode_byte(dtype, code);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = table[std::to_integer<unsigned>(from[i])];
}

}  // namespace

bool DifferingElement::before(DifferingElement const& other) const {
  return std::tie(place, file, offset_bytes) <
         std::tie(other.place, other.file, other.offset_bytes);
}

void LargestValue::take(LargestValue const& other) {
  if (other.place == DifferingElement::nowhere) return;
  bool const larger = place == DifferingElement::nowhere || other.value > value;
  if (larger || (other.value == value && other.place < place)) *this = other;
}

void DifferenceDecades::add(double difference) {
  static constexpr std::array<double, classes - 1> bounds = {
      1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2, 1e3};
  auto const above = std::upper_bound(bounds.begin(), bounds.end(), difference);
  ++counts[static_cast<std::size_t>(above - bounds.begin())];
}

void DifferenceDecades::add(DifferenceDecades const& other) {
  for (std::size_t i = 0; i < classes; ++i) counts[i] += other.counts[i];
}

std::uint64_t DifferenceDecades::sum() const {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

std::string DifferenceDecades::name(std::size_t number) {
  if (number == 0) return fmt::format("below 1e{}", first_power);
  return fmt::format("1e{}{}", first_power + static_cast<int>(number) - 1,
                     number + 1 == classes ? " and more" : "");
}

void TensorStats::add(TensorStats const& other) {
  elements += other.elements;
  differing += other.differing;
  differing_in_replicas += other.differing_in_replicas;
  if (other.first.before(first)) first = other.first;
  absolute.take(other.absolute);
  relative.take(other.relative);
  decades.add(other.decades);
  absolute_sum += other.absolute_sum;
  finite += other.finite;
  largest_a = std::max(largest_a, other.largest_a);
  largest_b = std::max(largest_b, other.largest_b);
  nan_a += other.nan_a;
  nan_b += other.nan_b;
  infinite_a += other.infinite_a;
  infinite_b += other.infinite_b;
  non_finite_differing += other.non_finite_differing;
  absolute_in_replicas = std::max(absolute_in_replicas, other.absolute_in_replicas);
  relative_in_replicas = std::max(relative_in_replicas, other.relative_in_replicas);
  non_finite_in_replicas += other.non_finite_in_replicas;
}

void merge_stats(Comm const& comm, std::span<TensorStats> stats) {
  static_assert(std::is_trivially_copyable_v<TensorStats>);
  struct Entry {
    std::uint64_t tensor = 0;
    TensorStats stats;
  };
  std::string mine;
  for (std::size_t t = 0; t < stats.size(); ++t) {
    if (stats[t].elements == 0 && stats[t].same()) continue;
    Entry const entry{t, stats[t]};
    mine.append(reinterpret_cast<char const*>(&entry), sizeof entry);
    stats[t] = {};
  }
  for (std::string const& bytes : comm.all_gather(mine))
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(Entry)) {
      Entry entry;
      std::memcpy(&entry, bytes.data() + at, sizeof entry);
      stats[entry.tensor].add(entry.stats);
    }
}

bool has_values(DType dtype) {
  return bits(dtype) >= 8 && dtype != DType::c32 && dtype != DType::c64 && dtype != DType::c128 &&
         dtype != DType::f4_x2;
}

void decode_values(DType dtype, std::span<std::byte const> from, std::span<double> values) {
  RESHARD_EXPECT(has_values(dtype) &&
                 from.size() == values.size() * static_cast<std::size_t>(bits(dtype) / 8));
  switch (dtype) {
    case DType::f64: return decode_numbers<double>(from, values);
    case DType::f32: return decode_numbers<float>(from, values);
    case DType::bf16: return decode_bf16(from, values);
    case DType::f16: return decode_f16(from, values);
    case DType::i16: return decode_numbers<std::int16_t>(from, values);
    case DType::u16: return decode_numbers<std::uint16_t>(from, values);
    case DType::i32: return decode_numbers<std::int32_t>(from, values);
    case DType::u32: return decode_numbers<std::uint32_t>(from, values);
    case DType::i64: return decode_numbers<std::int64_t>(from, values);
    case DType::u64: return decode_numbers<std::uint64_t>(from, values);
    default: return decode_bytes(dtype, from, values);
  }
}

std::string value_text(DType dtype, std::span<std::byte const> element) {
  if (!has_values(dtype)) {
    std::string text = "0x";
    for (std::size_t i = element.size(); i-- > 0;)
      text += fmt::format("{:02x}", std::to_integer<unsigned>(element[i]));
    return text;
  }
  if (dtype == DType::boolean) return std::to_integer<int>(element[0]) != 0 ? "true" : "false";
  if (dtype == DType::i64 || dtype == DType::u64) {
    std::uint64_t number = 0;
    std::memcpy(&number, element.data(), sizeof number);
    return dtype == DType::i64 ? fmt::format("{}", static_cast<std::int64_t>(number))
                               : fmt::format("{}", number);
  }
  double value = 0;
  decode_values(dtype, element, {&value, 1});
  if (std::isnan(value)) return "NaN";
  return dtype == DType::f64 ? fmt::format("{}", value)
                             : fmt::format("{}", static_cast<float>(value));
}

}  // namespace reshard
