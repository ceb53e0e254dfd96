#include <array>
#include <string_view>

#include "core/containers/torch/little_endian.hpp"
#include "core/containers/torch/zip/zip_directory.hpp"
#include "core/containers/torch/zip/zip_format.hpp"

namespace reshard::zip {
namespace {

using Bytes = std::span<std::byte const>;

template <class... Args>
[[noreturn]] void damaged(FileRange const& file, fmt::format_string<Args...> format,
                          Args&&... args) {
  fail(ErrorKind::source,
       "{}: end of the zip archive: {} The file is truncated or damaged: compare its size with "
       "the original.",
       file.name(), fmt::format(format, std::forward<Args>(args)...));
}

/// The offset of the one end record whose comment reaches exactly to the end of the file.
std::uint64_t find_end_record(FileRange const& file, std::uint64_t size) {
  std::uint64_t const tail_bytes = std::min<std::uint64_t>(size, end_bytes + longest_comment_bytes);
  if (tail_bytes < end_bytes)
    damaged(file, "it has {} bytes, and its end record needs {}.", size, end_bytes);
  std::vector<std::byte> tail(tail_bytes);
  file.read_at(size - tail_bytes, tail);
  std::vector<std::size_t> const found = end_records(tail);
  if (found.empty())
    damaged(file, "no end record in its last {} bytes (file size {}).", tail_bytes, size);
  if (found.size() > 1) damaged(file, "{} end records found, expected one.", found.size());
  return size - tail_bytes + found.front();
}

/// The ZIP64 end record, when there is a locator in front of the end record; the offset of the
/// record goes to `directory_end`.
bool read_zip64_end(FileRange const& file, std::uint64_t end, DirectoryPlace& place,
                    std::uint64_t& directory_end) {
  if (end < locator_bytes + end64_bytes) return false;
  std::array<std::byte, end64_bytes + locator_bytes> bytes;
  std::uint64_t const at = end - bytes.size();
  file.read_at(at, bytes);
  Bytes const record = Bytes(bytes).first(end64_bytes);
  Bytes const locator = Bytes(bytes).subspan(end64_bytes);
  if (load_little_endian<std::uint32_t>(locator) != locator_signature) return false;
  auto const claimed = load_little_endian<std::uint64_t>(locator.subspan(8));
  if (load_little_endian<std::uint32_t>(record) != end64_signature || claimed != at)
    damaged(file, "the ZIP64 locator names offset {}, expected a record at {}.", claimed, at);
  if (auto const rest = load_little_endian<std::uint64_t>(record.subspan(4));
      rest != end64_bytes - 12)
    damaged(file, "the ZIP64 end record states {} more bytes, expected {}.", rest,
            end64_bytes - 12);
  auto const disks = load_little_endian<std::uint32_t>(locator.subspan(16));
  if (load_little_endian<std::uint32_t>(locator.subspan(4)) != 0 || disks > 1 ||
      load_little_endian<std::uint32_t>(record.subspan(16)) != 0 ||
      load_little_endian<std::uint32_t>(record.subspan(20)) != 0)
    damaged(file, "the archive has several parts, expected one.");
  place.entries = load_little_endian<std::uint64_t>(record.subspan(32));
  place.size_bytes = load_little_endian<std::uint64_t>(record.subspan(40));
  place.offset_bytes = load_little_endian<std::uint64_t>(record.subspan(48));
  if (auto const here = load_little_endian<std::uint64_t>(record.subspan(24));
      here != place.entries)
    damaged(file, "the ZIP64 end record counts {} entries in this part and {} in all.", here,
            place.entries);
  directory_end = at;
  return true;
}

/// Throws unless the two end records agree wherever the short one does not refer to the long one.
void expect_same(FileRange const& file, DirectoryPlace const& end, DirectoryPlace const& end64) {
  auto const differ = [](std::uint64_t narrow_value, std::uint64_t wide, std::uint64_t refers) {
    return narrow_value != refers && narrow_value != wide;
  };
  if (differ(end.entries, end64.entries, count_in_zip64))
    damaged(file, "the end record counts {} entries, the ZIP64 one {}.", end.entries,
            end64.entries);
  if (differ(end.size_bytes, end64.size_bytes, in_zip64) ||
      differ(end.offset_bytes, end64.offset_bytes, in_zip64))
    damaged(file,
            "the end record puts the directory at {} with {} bytes, the ZIP64 one at {} with {}.",
            end.offset_bytes, end.size_bytes, end64.offset_bytes, end64.size_bytes);
}

}  // namespace

std::vector<std::size_t> end_records(std::span<std::byte const> tail) {
  std::vector<std::size_t> found;
  if (tail.size() < end_bytes) return found;
  char const* const text = reinterpret_cast<char const*>(tail.data());
  std::string_view const starts(text, tail.size() - end_bytes + 1);
  constexpr char first = static_cast<char>(end_signature & 0xffU);
  for (std::size_t at = starts.find(first); at < starts.size(); at = starts.find(first, at + 1)) {
    Bytes const here = tail.subspan(at);
    if (load_little_endian<std::uint32_t>(here) != end_signature) continue;
    if (load_little_endian<std::uint16_t>(here.subspan(20)) == here.size() - end_bytes)
      found.push_back(at);
  }
  return found;
}

DirectoryPlace find_directory(FileRange const& file) {
  std::uint64_t const end = find_end_record(file, file.size_bytes());
  std::array<std::byte, end_bytes> bytes;
  file.read_at(end, bytes);
  Bytes const record(bytes);
  auto const field = [&](std::size_t at) {
    return load_little_endian<std::uint16_t>(record.subspan(at));
  };
  if (field(4) != 0 || field(6) != 0 || field(8) != field(10))
    damaged(file, "the archive has several parts, expected one.");
  DirectoryPlace place{.offset_bytes = load_little_endian<std::uint32_t>(record.subspan(16)),
                       .size_bytes = load_little_endian<std::uint32_t>(record.subspan(12)),
                       .entries = field(10)};
  std::uint64_t directory_end = end;
  if (DirectoryPlace place64; read_zip64_end(file, end, place64, directory_end)) {
    expect_same(file, place, place64);
    place = place64;
  }
  if (place.offset_bytes > directory_end || place.size_bytes != directory_end - place.offset_bytes)
    damaged(file, "the directory is recorded at {} with {} bytes, expected it to end at {}.",
            place.offset_bytes, place.size_bytes, directory_end);
  if (place.entries > place.size_bytes / central_bytes)
    damaged(file, "{} entries are counted, but a directory of {} bytes holds at most {}.",
            place.entries, place.size_bytes, place.size_bytes / central_bytes);
  return place;
}

}  // namespace reshard::zip
