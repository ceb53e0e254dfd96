#include "core/containers/torch/zip/zip_layout.hpp"

#include <algorithm>

#include "core/base/tables/integers.hpp"
#include "core/containers/torch/little_endian.hpp"
#include "core/containers/torch/zip/zip_format.hpp"

namespace reshard::zip {
namespace {

bool is_far(std::uint64_t value) { return value >= in_zip64; }
std::uint32_t near_part(std::uint64_t value) {
  return is_far(value) ? in_zip64 : static_cast<std::uint32_t>(value);
}

/// The size of the ZIP64 field: two sizes if the size does not fit into 32 bits, then the offset if
/// that does not. 0: no ZIP64 field.
std::size_t zip64_bytes(std::uint64_t header_offset, std::uint64_t size) {
  return (is_far(size) ? 16U : 0U) + (is_far(header_offset) ? 8U : 0U);
}

std::size_t zip64_field_bytes(std::uint64_t header_offset, std::uint64_t size) {
  std::size_t const bytes = zip64_bytes(header_offset, size);
  return bytes == 0 ? 0 : extra_header_bytes + bytes;
}

/// `stored_size`: the local header is written before it is known, and keeps a zero.
void append_zip64_field(std::string& out, ZipRecord const& record, std::uint64_t stored_size) {
  std::size_t const bytes = zip64_bytes(record.header_offset_bytes, record.size_bytes);
  if (bytes == 0) return;
  append_little_endian(out, extra_zip64);
  append_little_endian(out, static_cast<std::uint16_t>(bytes));
  if (is_far(record.size_bytes)) {
    append_little_endian(out, record.size_bytes);
    append_little_endian(out, stored_size);
  }
  if (is_far(record.header_offset_bytes)) append_little_endian(out, record.header_offset_bytes);
}

/// Appends the common fields of both headers: from the version needed to the extra field's length.
/// No time and date, and version 0.
void append_common(std::string& out, ZipRecord const& record, std::uint32_t crc32,
                   std::uint32_t size, std::size_t extra_bytes) {
  append_little_endian(out, std::uint16_t{0});
  append_little_endian(out, static_cast<std::uint16_t>(
                                record.size_bytes == 0 ? flag_utf8 : flag_utf8 | flag_descriptor));
  append_little_endian(out, std::uint16_t{0});  // stored
  append_little_endian(out, std::uint32_t{0});  // time and date
  append_little_endian(out, crc32);
  append_little_endian(out, size);
  append_little_endian(out, size);
  append_little_endian(out, narrow<std::uint16_t>(record.name.size()));
  append_little_endian(out, narrow<std::uint16_t>(extra_bytes));
}

std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  return checked_add(a, b, ErrorKind::source, "size of a torch file");
}

}  // namespace

std::uint64_t payload_offset(std::uint64_t header_offset_bytes, std::size_t name_bytes,
                             std::uint64_t size_bytes, std::uint64_t alignment_bytes) {
  std::size_t const header = local_bytes + name_bytes +
                             zip64_field_bytes(header_offset_bytes, size_bytes) +
                             extra_header_bytes;
  std::uint64_t const least = add(header_offset_bytes, header);
  return add(least, (alignment_bytes - least % alignment_bytes) % alignment_bytes);
}

std::size_t descriptor_size(std::uint64_t header_offset_bytes, std::uint64_t size_bytes) {
  if (size_bytes == 0) return 0;
  return zip64_bytes(header_offset_bytes, size_bytes) == 0 ? 16 : 24;
}

std::size_t central_size(std::uint64_t header_offset_bytes, std::size_t name_bytes,
                         std::uint64_t size_bytes) {
  return central_bytes + name_bytes + zip64_field_bytes(header_offset_bytes, size_bytes);
}

std::size_t end_records_size() { return end64_bytes + locator_bytes + end_bytes; }

std::uint64_t Layout::place_unnamed(std::size_t name_bytes, std::uint64_t size_bytes) {
  std::uint64_t const payload = payload_offset(at_, name_bytes, size_bytes, alignment_bytes_);
  directory_bytes_ = add(directory_bytes_, central_size(at_, name_bytes, size_bytes));
  at_ = add(add(payload, size_bytes), descriptor_size(at_, size_bytes));
  ++records_;
  return payload;
}

ZipRecord Layout::place(std::string name, std::uint64_t size_bytes) {
  std::uint64_t const header = at_;
  std::uint64_t const payload = place_unnamed(name.size(), size_bytes);
  return {.name = std::move(name),
          .header_offset_bytes = header,
          .payload_offset_bytes = payload,
          .size_bytes = size_bytes};
}

std::uint64_t Layout::size_bytes() const {
  return add(add(at_, directory_bytes_), end_records_size());
}

void append_local_header(std::string& out, ZipRecord const& record) {
  std::size_t const begin = out.size();
  std::uint64_t const whole = record.payload_offset_bytes - record.header_offset_bytes;
  append_little_endian(out, local_signature);
  // Checksum and sizes are after the payload.
  append_common(out, record, 0, 0, whole - local_bytes - record.name.size());
  out += record.name;
  append_zip64_field(out, record, 0);
  std::size_t const padding = whole - (out.size() - begin) - extra_header_bytes;
  append_little_endian(out, extra_padding);
  append_little_endian(out, narrow<std::uint16_t>(padding));
  out.append(padding, 'Z');
}

void append_descriptor(std::string& out, ZipRecord const& record, std::uint32_t crc32) {
  if (record.size_bytes == 0) return;
  append_little_endian(out, descriptor_signature);
  append_little_endian(out, crc32);
  bool const wide = zip64_bytes(record.header_offset_bytes, record.size_bytes) != 0;
  for (int i = 0; i < 2; ++i) {
    if (wide)
      append_little_endian(out, record.size_bytes);
    else
      append_little_endian(out, static_cast<std::uint32_t>(record.size_bytes));
  }
}

void append_central_header(std::string& out, ZipRecord const& record, std::uint32_t crc32) {
  append_little_endian(out, central_signature);
  append_little_endian(out, std::uint16_t{0});  // made by
  append_common(out, record, crc32, near_part(record.size_bytes),
                zip64_field_bytes(record.header_offset_bytes, record.size_bytes));
  append_little_endian(out, std::uint16_t{0});  // comment
  append_little_endian(out, std::uint16_t{0});  // disk
  append_little_endian(out, std::uint16_t{0});  // internal attributes
  append_little_endian(out, std::uint32_t{0});  // external attributes
  append_little_endian(out, near_part(record.header_offset_bytes));
  out += record.name;
  append_zip64_field(out, record, record.size_bytes);
}

void append_end_records(std::string& out, Layout const& layout) {
  constexpr std::uint16_t made_by = 0x031e;  // the value of torch's zip library: Unix, 3.0
  constexpr std::uint16_t needed = 45;
  append_little_endian(out, end64_signature);
  append_little_endian(out, std::uint64_t{end64_bytes - 12});
  append_little_endian(out, made_by);
  append_little_endian(out, needed);
  append_little_endian(out, std::uint64_t{0});  // both disks
  append_little_endian(out, layout.records());
  append_little_endian(out, layout.records());
  append_little_endian(out, layout.directory_bytes());
  append_little_endian(out, layout.directory_offset_bytes());
  append_little_endian(out, locator_signature);
  append_little_endian(out, std::uint32_t{0});
  append_little_endian(out, layout.directory_offset_bytes() + layout.directory_bytes());
  append_little_endian(out, std::uint32_t{1});
  auto const count =
      static_cast<std::uint16_t>(std::min<std::uint64_t>(layout.records(), count_in_zip64));
  append_little_endian(out, end_signature);
  append_little_endian(out, std::uint32_t{0});
  append_little_endian(out, count);
  append_little_endian(out, count);
  append_little_endian(out, near_part(layout.directory_bytes()));
  append_little_endian(out, near_part(layout.directory_offset_bytes()));
  append_little_endian(out, std::uint16_t{0});  // comment
}

}  // namespace reshard::zip
