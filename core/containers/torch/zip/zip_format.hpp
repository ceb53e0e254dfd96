#pragma once

#include <cstddef>
#include <cstdint>

/// Numbers of the zip format (PKWARE's APPNOTE, section 4.3 and 4.5). All fields are little-endian.
namespace reshard::zip {

/// 4.3.7: local file header. Byte offsets: 4 version, 6 flags, 8 method, 10 time, 12 date, 14 crc,
/// 18 stored size, 22 size, 26 name length, 28 extra length, 30 name, extra, payload.
inline constexpr std::uint32_t local_signature = 0x04034b50;
inline constexpr std::size_t local_bytes = 30;

/// 4.3.9: data descriptor, after the payload when flag bit 3 is set. The signature is optional, the
/// sizes have 4 or 8 bytes.
inline constexpr std::uint32_t descriptor_signature = 0x08074b50;

/// 4.3.12: central directory header. 8 flags, 10 method, 16 crc, 20 stored size, 24 size, 28 name
/// length, 30 extra length, 32 comment length, 34 disk, 42 offset of the local header, 46 name,
/// extra, comment.
inline constexpr std::uint32_t central_signature = 0x02014b50;
inline constexpr std::size_t central_bytes = 46;

/// 4.3.14: ZIP64 end of central directory. 4 size of the rest, 16 disk, 20 directory's disk, 24
/// entries here, 32 entries, 40 directory size, 48 directory offset.
inline constexpr std::uint32_t end64_signature = 0x06064b50;
inline constexpr std::size_t end64_bytes = 56;

/// 4.3.15: its locator. 4 disk, 8 offset of the ZIP64 end record, 16 number of disks.
inline constexpr std::uint32_t locator_signature = 0x07064b50;
inline constexpr std::size_t locator_bytes = 20;

/// 4.3.16: end of central directory. 4 disk, 6 directory's disk, 8 entries here, 10 entries, 12
/// directory size, 16 directory offset, 20 comment length.
inline constexpr std::uint32_t end_signature = 0x06054b50;
inline constexpr std::size_t end_bytes = 22;
inline constexpr std::size_t longest_comment_bytes = 0xffff;

inline constexpr std::uint16_t flag_encrypted = 1U << 0 | 1U << 6 | 1U << 13;
inline constexpr std::uint16_t flag_descriptor = 1U << 3;
inline constexpr std::uint16_t flag_utf8 = 1U << 11;

/// Extra fields: ZIP64 sizes and offset (4.5.3), and the padding torch writes so that payloads are
/// aligned.
inline constexpr std::uint16_t extra_zip64 = 0x0001;
inline constexpr std::uint16_t extra_padding = 0x4246;  // "FB"
inline constexpr std::size_t extra_header_bytes = 4;

/// A field with all bits set: its value is in the ZIP64 extra field or end record.
inline constexpr std::uint32_t in_zip64 = 0xffffffffU;
inline constexpr std::uint16_t count_in_zip64 = 0xffffU;

}  // namespace reshard::zip
