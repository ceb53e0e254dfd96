#include <algorithm>
#include <functional>
#include <tuple>

#include <fmt/ranges.h>

#include "core/containers/safetensors/rules.hpp"

namespace reshard::safetensors {
namespace {

constexpr std::string_view damaged = "The file is damaged: compare it with the original.";

struct HashedName {
  std::size_t hash;
  std::string_view name;
};

/// Rule 16. Compares hashes first, so that names with long common beginnings are cheap to compare.
void check_names(std::vector<FileTensor> const& tensors, std::string_view place) {
  std::vector<HashedName> names;
  names.reserve(tensors.size());
  for (FileTensor const& tensor : tensors)
    names.push_back({std::hash<std::string_view>{}(tensor.name), tensor.name});
  std::ranges::sort(names, {},
                    [](HashedName const& each) { return std::tie(each.hash, each.name); });
  auto const twice =
      std::ranges::adjacent_find(names, [](HashedName const& a, HashedName const& b) {
        return a.hash == b.hash && a.name == b.name;
      });
  if (twice != names.end())
    fail(ErrorKind::source,
         "{}, tensor '{}': the name appears twice in the header, expected once. {}", place,
         shown(twice->name), damaged);
}

/// By (begin, end), because an empty tensor begins where its successor does; the order of the text
/// decides between equals.
void sort_by_bytes(std::vector<FileTensor>& tensors) {
  auto const place = [](FileTensor const& tensor) {
    return std::tuple(tensor.offset_bytes, tensor.size_bytes);
  };
  if (!std::ranges::is_sorted(tensors, {}, place)) std::ranges::stable_sort(tensors, {}, place);
}

/// Rule 17. Returns the end of the last tensor.
std::uint64_t check_cover(std::vector<FileTensor> const& tensors, std::string_view place) {
  std::uint64_t covered = 0;
  std::string_view before;
  for (FileTensor const& tensor : tensors) {
    std::uint64_t const begin = tensor.offset_bytes;
    std::uint64_t const end = begin + tensor.size_bytes;
    if (begin > covered)
      fail(
          ErrorKind::source,
          "{}, tensor '{}': begins at byte {} of the data section, expected {}: bytes [{}, {}) belong to no tensor. {}",
          place, shown(tensor.name), begin, covered, covered, begin, damaged);
    if (begin < covered)
      fail(
          ErrorKind::source,
          "{}, tensor '{}': begins at byte {} of the data section, expected {}: it overlaps tensor '{}'. {}",
          place, shown(tensor.name), begin, covered, shown(before), damaged);
    covered = end;
    before = tensor.name;
  }
  return covered;
}

/// Rule 18.
void check_end(std::uint64_t covered, std::uint64_t data_bytes, std::string_view place) {
  if (covered > data_bytes)
    fail(
        ErrorKind::source,
        "{}: the header describes {} bytes of data, the file has {} after its header: {} bytes are missing. {}",
        place, covered, data_bytes, covered - data_bytes,
        "The file is truncated: compare its size with the original, then run again.");
  if (covered < data_bytes)
    fail(
        ErrorKind::source,
        "{}: the header describes {} bytes of data, the file has {} after its header: {} bytes belong to no tensor. {}",
        place, covered, data_bytes, data_bytes - covered, damaged);
}

}  // namespace

std::optional<std::uint64_t> packed_bytes(DType dtype, std::span<Index const> shape) {
  if (std::ranges::find(shape, Index{0}) != shape.end()) return 0;
  auto total_bits = static_cast<std::uint64_t>(bits(dtype));
  for (Index const extent : shape)
    if (__builtin_mul_overflow(total_bits, static_cast<std::uint64_t>(extent), &total_bits))
      return std::nullopt;
  if (total_bits % 8 != 0) return std::nullopt;
  return total_bits / 8;
}

std::string shown_shape(std::span<Index const> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void place_tensors(Header& header, std::uint64_t file_bytes, std::string_view place) {
  check_names(header.tensors, place);
  sort_by_bytes(header.tensors);
  std::uint64_t const covered = check_cover(header.tensors, place);
  check_end(covered, file_bytes - header.header_bytes, place);
  for (FileTensor& tensor : header.tensors) tensor.offset_bytes += header.header_bytes;
}

}  // namespace reshard::safetensors
