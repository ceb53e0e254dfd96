#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/data_layout.hpp"
#include "core/base/files/file.hpp"
#include "core/containers/file_tensor.hpp"

namespace reshard::safetensors {

/// The longest header that the reference reader accepts (docs/formats/safetensors.md, 2).
inline constexpr std::uint64_t largest_header_bytes = 100'000'000;
/// The longest header that we write: the Hub's parser stops at 25 MB.
inline constexpr std::uint64_t largest_written_header_bytes = 25'000'000;

/// The header of a file: its tensors in order of their bytes, and the string map `__metadata__`.
struct Header {
  std::vector<FileTensor> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::uint64_t header_bytes = 0;  ///< 8 + the JSON and its padding: where the data section starts
};

/// Reads and checks a header; no payload is read. A violated rule of docs/formats/safetensors.md, 2
/// is an Error of kind source with file, tensor and both values.
Header read_header(File const& file);
/// As read_header(), from bytes: `bytes` is the beginning of a file of `file_bytes` bytes (at least
/// the complete header); `place` names it in errors.
Header parse_header(std::span<std::byte const> bytes, std::uint64_t file_bytes,
                    std::string_view place);
/// The unchanged bytes of a file before its data section, checked as by read_header().
std::string read_head(File const& file);
/// read_head() with a check of the length only: for parse_header().
std::string unchecked_head(File const& file);

/// The size of a tensor in a file, in bytes. A tensor that the format cannot represent
/// (docs/formats/safetensors.md, 3) is an Error of kind usage.
std::uint64_t tensor_bytes(TensorSpec const& tensor);

/// A name from a file, fit for a message: control characters escaped, long ones cut.
std::string shown(std::string_view name);

/// The byte layout of a file to be written, known before any payload.
struct FilePlan {
  std::string header;                       ///< the first bytes of the file
  std::vector<std::uint64_t> offset_bytes;  ///< of each tensor, in the order given to plan_file
  std::uint64_t size_bytes = 0;             ///< of the file
};

/// Lays out a file as the safetensors library does: widest dtype first, then by name, packed
/// without holes; the data section starts at a multiple of 8. With DataLayout::for_clones it starts
/// at a multiple of 4096, and tensors of complete blocks come before all others. `metadata` should
/// hold {"format", "pt"}: loaders ask for it.
FilePlan plan_file(std::span<TensorSpec const> tensors,
                   std::span<std::pair<std::string, std::string> const> metadata,
                   DataLayout data_layout = DataLayout::usual);

/// Lays out a file with the header of another, which is `header` (the first bytes of a file of
/// `file_bytes` bytes), spelling, order and padding included. nullopt unless that file has exactly
/// these tensors. Errors: as parse_header().
std::optional<FilePlan> plan_file_like(std::span<std::byte const> header, std::uint64_t file_bytes,
                                       std::span<TensorSpec const> tensors);

}  // namespace reshard::safetensors
