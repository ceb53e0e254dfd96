#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// The zip archives that torch.save writes, byte for byte (docs/formats/torch-file.md, section 1).
/// All bytes but the checksums follow from the names and sizes of the records, and torch 2.7 and
/// later rely on that: they compute the offsets of payloads instead of reading them.
namespace reshard {

/// A record of a zip file to be written, with the offset of its payload.
struct ZipRecord {
  std::string name;  ///< in the archive, folder included
  std::uint64_t header_offset_bytes = 0;
  std::uint64_t payload_offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  friend bool operator==(ZipRecord const&, ZipRecord const&) = default;
};

namespace zip {

/// Payloads begin at multiples of this, unless torch.save was told otherwise
/// (torch.utils.serialization.config.save.storage_alignment).
inline constexpr std::uint64_t usual_alignment_bytes = 64;

/// The offset of the payload of a record with its local header at `header_offset_bytes`.
std::uint64_t payload_offset(std::uint64_t header_offset_bytes, std::size_t name_bytes,
                             std::uint64_t size_bytes,
                             std::uint64_t alignment_bytes = usual_alignment_bytes);
/// The size of the data descriptor after the payload; 0 for an empty record.
std::size_t descriptor_size(std::uint64_t header_offset_bytes, std::uint64_t size_bytes);
/// The size of a record's entry in the central directory.
std::size_t central_size(std::uint64_t header_offset_bytes, std::size_t name_bytes,
                         std::uint64_t size_bytes);
/// The size of the three end records.
std::size_t end_records_size();

/// Puts records one after the other, from offset 0 on. Sizes that do not fit into 64 bits are
/// Errors of kind source.
class Layout {
 public:
  /// The payloads of all records begin at multiples of `alignment_bytes`, at most 32 KiB: the limit
  /// of the padding in a local header.
  explicit Layout(std::uint64_t alignment_bytes = usual_alignment_bytes)
      : alignment_bytes_(alignment_bytes) {}

  ZipRecord place(std::string name, std::uint64_t size_bytes);
  /// As place(), for callers that need only the offset of the payload.
  std::uint64_t place_unnamed(std::size_t name_bytes, std::uint64_t size_bytes);

  std::uint64_t records() const { return records_; }
  std::uint64_t directory_offset_bytes() const { return at_; }
  std::uint64_t directory_bytes() const { return directory_bytes_; }
  /// The size of the file.
  std::uint64_t size_bytes() const;

 private:
  std::uint64_t alignment_bytes_;
  std::uint64_t at_ = 0;
  std::uint64_t directory_bytes_ = 0;
  std::uint64_t records_ = 0;
};

void append_local_header(std::string& out, ZipRecord const& record);
void append_descriptor(std::string& out, ZipRecord const& record, std::uint32_t crc32);
void append_central_header(std::string& out, ZipRecord const& record, std::uint32_t crc32);
void append_end_records(std::string& out, Layout const& layout);

/// A record other than data.pkl and the storages.
struct SmallRecord {
  std::string_view name;
  std::string_view content;
};
/// The record with Layout's alignment.
inline constexpr std::string_view alignment_name = ".storage_alignment";
/// Records between data.pkl and the storages.
inline constexpr SmallRecord before_storages[] = {
    {".format_version", "1"}, {alignment_name, "64"}, {"byteorder", "little"}};
/// Records after the storages. torch writes a hash into the last, which it only logs.
inline constexpr SmallRecord after_storages[] = {
    {"version", "3\n"}, {".data/serialization_id", "0000000000000000000000000000000000000000"}};

}  // namespace zip
}  // namespace reshard
