#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tables/integers.hpp"
#include "core/containers/safetensors/safetensors.hpp"

namespace simdjson {
class padded_string_view;
}

namespace reshard::safetensors {

// Shared by the reader and the writer of this folder; no other code includes this header. Numbers
// in parentheses are rules of docs/formats/safetensors.md.

/// The longest tensor name (rule 9).
inline constexpr std::size_t largest_name_bytes = 64 * 1024;
/// The most dimensions of a tensor (rule 13): the limit of numpy and torch.
inline constexpr std::size_t largest_rank = 64;
/// The most entries of `__metadata__` (rule 8): a header of entries only would fill the memory.
inline constexpr std::size_t largest_metadata_entries = 100'000;
/// The name reserved by the format.
inline constexpr std::string_view metadata_name = "__metadata__";
/// The length field in front of the JSON.
inline constexpr std::uint64_t length_bytes = 8;

/// The size of a packed tensor in bytes; nullopt if the product overflows or the last byte would be
/// shared (rule 15). Pre: every extent is >= 0.
std::optional<std::uint64_t> packed_bytes(DType dtype, std::span<Index const> shape);

/// "[2, 3]".
std::string shown_shape(std::span<Index const> shape);

/// The header's JSON (rules 6 to 15), its tensors in the order of the text and with offsets
/// relative to the data section. Pre: `json` is followed by simdjson's padding.
Header header_from_json(simdjson::padded_string_view json, std::string_view place);

/// Rules 16 to 18: no name twice, the tensors cover the data section without a hole or an overlap.
/// Sorts them by their bytes and makes their offsets absolute. Pre: header.header_bytes <=
/// file_bytes.
void place_tensors(Header& header, std::uint64_t file_bytes, std::string_view place);

}  // namespace reshard::safetensors
