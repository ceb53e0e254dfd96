#include "core/containers/torch/zip/stored_crc.hpp"

#include <array>

#include "core/containers/torch/little_endian.hpp"
#include "core/containers/torch/zip/zip_directory.hpp"
#include "core/containers/torch/zip/zip_format.hpp"

namespace reshard::zip {
namespace {

std::optional<Entry> entry_at(FileRange const& archive, std::uint64_t offset_bytes) {
  std::array<std::byte, 4> first{};
  if (archive.read_some_at(0, first) != first.size() ||
      load_little_endian<std::uint32_t>(first) != local_signature)
    return std::nullopt;
  for (Entry& entry : read_directory(archive))
    if (entry.payload_offset_bytes == offset_bytes) return std::move(entry);
  return std::nullopt;
}

std::optional<std::uint32_t> unless_zero(std::uint32_t crc32) {
  return crc32 == 0 ? std::nullopt : std::optional(crc32);
}

}  // namespace

std::optional<std::uint32_t> stored_crc32(FileRange const& archive, std::uint64_t offset_bytes,
                                          std::uint64_t size_bytes) {
  std::array<std::byte, 24> bytes{};
  archive.read_some_at(offset_bytes + size_bytes, bytes);
  std::span<std::byte const> const descriptor(bytes);
  auto const u32 = [&](std::size_t at) {
    return load_little_endian<std::uint32_t>(descriptor.subspan(at));
  };
  auto const u64 = [&](std::size_t at) {
    return load_little_endian<std::uint64_t>(descriptor.subspan(at));
  };
  bool const near = u32(8) == size_bytes && u32(12) == size_bytes;
  bool const far = u64(8) == size_bytes && u64(16) == size_bytes;
  if (u32(0) == descriptor_signature && (near || far)) return unless_zero(u32(4));
  auto const entry = entry_at(archive, offset_bytes);
  return entry && entry->size_bytes == size_bytes ? unless_zero(entry->crc32) : std::nullopt;
}

std::string record_name(FileRange const& archive, std::uint64_t offset_bytes) {
  auto const entry = entry_at(archive, offset_bytes);
  return entry ? entry->name : "";
}

}  // namespace reshard::zip
