#include "core/containers/torch/zip/zip_directory.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/containers/torch/little_endian.hpp"
#include "core/containers/torch/pickle/pickle_text.hpp"
#include "core/containers/torch/zip/zip_format.hpp"
#include "core/containers/torch/zip/zip_layout.hpp"

namespace reshard::zip {
namespace {

constexpr std::uint64_t largest_directory_bytes = std::uint64_t{256} << 20;
constexpr std::size_t longest_descriptor_bytes = 24;
/// A descriptor and the header behind it are one read; so are several small records.
constexpr std::size_t window_bytes = 512;

using Bytes = std::span<std::byte const>;

std::uint16_t u16(Bytes bytes, std::size_t at) {
  return load_little_endian<std::uint16_t>(bytes.subspan(at));
}
std::uint32_t u32(Bytes bytes, std::size_t at) {
  return load_little_endian<std::uint32_t>(bytes.subspan(at));
}
std::uint64_t u64(Bytes bytes, std::size_t at) {
  return load_little_endian<std::uint64_t>(bytes.subspan(at));
}
std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

/// The name of a record, as messages have it.
struct QuotedName {
  std::string_view name;
};

}  // namespace
}  // namespace reshard::zip

template <>
struct fmt::formatter<reshard::zip::QuotedName> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(reshard::zip::QuotedName const& quoted, Context& context) const {
    return fmt::formatter<std::string_view>::format(reshard::json_quoted(quoted.name), context);
  }
};

namespace reshard::zip {
namespace {

class DirectoryReader {
 public:
  explicit DirectoryReader(FileRange const& file) : file_(file), place_(find_directory(file)) {}

  std::vector<Entry> read() {
    std::vector<Entry> records = read_central();
    expect_unique_names(records);
    std::ranges::sort(records, {}, &Entry::header_offset_bytes);
    std::uint64_t end = 0;
    for (Entry& record : records) {
      expect_start(record, end);
      read_local(record);
      end = payload_end(record);
    }
    if (!records.empty()) end += descriptor_bytes(records.back(), place_.offset_bytes);
    if (end != place_.offset_bytes)
      damaged(
          "the records end at {}, the directory begins at {}: bytes between them belong to no "
          "record.",
          end, place_.offset_bytes);
    return records;
  }

 private:
  template <class... Args>
  [[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::source,
         "{}: zip directory: {} The file is damaged: fetch it again from its origin.", file_.name(),
         fmt::format(format, std::forward<Args>(args)...));
  }

  std::vector<Entry> read_central() {
    if (place_.size_bytes > largest_directory_bytes)
      damaged("it has {}, at most {} are read.", human_bytes(place_.size_bytes),
              human_bytes(largest_directory_bytes));
    std::vector<std::byte> bytes(place_.size_bytes);
    file_.read_at(place_.offset_bytes, bytes);
    std::vector<Entry> records;
    records.reserve(place_.entries);
    Bytes rest(bytes);
    for (std::uint64_t i = 0; i < place_.entries; ++i) {
      std::size_t const used = read_central_entry(rest, i, records);
      records.back().listed_offset_bytes = place_.offset_bytes + place_.size_bytes - rest.size();
      rest = rest.subspan(used);
    }
    if (!rest.empty()) damaged("{} bytes follow its {} entries.", rest.size(), place_.entries);
    return records;
  }

  std::size_t read_central_entry(Bytes bytes, std::uint64_t number,
                                 std::vector<Entry>& records) const {
    if (bytes.size() < central_bytes || u32(bytes, 0) != central_signature)
      damaged("entry {} of {} has no header.", number, place_.entries);
    std::size_t const name_bytes = u16(bytes, 28);
    std::size_t const extra_bytes = u16(bytes, 30);
    std::size_t const used = central_bytes + name_bytes + extra_bytes + u16(bytes, 32);
    if (used > bytes.size())
      damaged("entry {} of {} needs {} bytes, {} are left.", number, place_.entries, used,
              bytes.size());
    Entry record;
    record.name = text_of(bytes.subspan(central_bytes, name_bytes));
    expect_good_name(record.name);
    record.flags = u16(bytes, 8);
    record.crc32 = u32(bytes, 16);
    QuotedName const name{record.name};
    if ((record.flags & flag_encrypted) != 0)
      fail(ErrorKind::source, "{}: record {} is encrypted. Save the file without encryption.",
           file_.name(), name);
    if (u16(bytes, 10) != 0 && record.name.find("/code/") != std::string::npos)
      fail(
          ErrorKind::source,
          "{}: is a TorchScript archive: it holds code ({}). Save the module's state_dict() with torch.save.",
          file_.name(), name);
    if (u16(bytes, 10) != 0)
      fail(
          ErrorKind::source,
          "{}: record {} is compressed (method {}), expected stored. Unpack it and pack it again with 'zip -0', or save it with torch.",
          file_.name(), name, u16(bytes, 10));
    if (u16(bytes, 34) != 0)
      damaged("record {} is on part {} of the archive, expected one part.", name, u16(bytes, 34));
    Sizes const sizes = central_sizes(bytes, name_bytes, extra_bytes, name);
    if (sizes.stored != sizes.plain)
      damaged("record {} is stored in {} bytes but has {}.", name, sizes.stored, sizes.plain);
    record.size_bytes = sizes.plain;
    record.header_offset_bytes = sizes.header_offset;
    records.push_back(std::move(record));
    return used;
  }

  struct Sizes {
    std::uint64_t plain = 0;
    std::uint64_t stored = 0;
    std::uint64_t header_offset = 0;
  };

  Sizes central_sizes(Bytes header, std::size_t name_bytes, std::size_t extra_bytes,
                      QuotedName name) const {
    Sizes sizes{
        .plain = u32(header, 24), .stored = u32(header, 20), .header_offset = u32(header, 42)};
    auto zip64 = zip64_field(header.subspan(central_bytes + name_bytes, extra_bytes), name);
    // Only the fields that refer to it are in the extra field, in this order.
    for (std::uint64_t* const value : {&sizes.plain, &sizes.stored, &sizes.header_offset}) {
      if (*value != in_zip64) continue;
      if (!zip64) continue;  // without the field it is the number itself
      if (zip64->size() < 8) damaged("the ZIP64 field of record {} is too short.", name);
      *value = u64(*zip64, 0);
      zip64 = zip64->subspan(8);
    }
    return sizes;
  }

  /// The content of the one ZIP64 extra field, if there is one. The last bytes of an extra area may
  /// be padding shorter than a field header.
  std::optional<Bytes> zip64_field(Bytes extra, QuotedName name) const {
    std::optional<Bytes> found;
    while (extra.size() >= extra_header_bytes) {
      std::uint16_t const id = u16(extra, 0);
      std::size_t const size = u16(extra, 2);
      if (size > extra.size() - extra_header_bytes)
        damaged("an extra field of record {} has {} bytes, {} are left.", name, size,
                extra.size() - extra_header_bytes);
      if (id == extra_zip64) {
        if (found) damaged("record {} has two ZIP64 fields.", name);
        found = extra.subspan(extra_header_bytes, size);
      }
      extra = extra.subspan(extra_header_bytes + size);
    }
    return found;
  }

  void expect_good_name(std::string_view name) const {
    bool const good_text = !name.empty() && pickle::is_utf8(name) &&
                           name.find('\\') == std::string_view::npos &&
                           name.find('\0') == std::string_view::npos;
    bool good_parts = !name.starts_with('/');
    for (std::size_t begin = 0; begin <= name.size() && good_parts;) {
      std::size_t const end = std::min(name.find('/', begin), name.size());
      std::string_view const part = name.substr(begin, end - begin);
      good_parts = part != ".." && part != "." && (!part.empty() || begin == name.size());
      begin = end + 1;
    }
    if (!good_text || !good_parts)
      damaged("{} is not a valid record name.", json_quoted(name.substr(0, 200)));
  }

  void expect_unique_names(std::vector<Entry> const& records) const {
    std::vector<std::string_view> names;  // sorted, not hashed: names can be made to share a hash
    names.reserve(records.size());
    for (Entry const& record : records) names.push_back(record.name);
    std::ranges::sort(names);
    auto const twice = std::ranges::adjacent_find(names);
    if (twice != names.end()) damaged("two records are named {}.", json_quoted(*twice));
  }

  /// The record must begin where the one before it ended, its descriptor included.
  void expect_start(Entry const& record, std::uint64_t previous_end) {
    std::uint64_t const start = record.header_offset_bytes;
    if (previous_ != nullptr && start >= previous_end)
      previous_end += descriptor_bytes(*previous_, start);
    if (start != previous_end)
      damaged(
          "record {} begins at {}, expected {}: it overlaps another or bytes between them belong "
          "to no record.",
          json_quoted(record.name), start, previous_end);
    previous_ = &record;
  }

  std::uint64_t payload_end(Entry const& record) const {
    std::uint64_t const begin = record.payload_offset_bytes;
    if (begin > place_.offset_bytes || record.size_bytes > place_.offset_bytes - begin)
      damaged("record {} has {} bytes at {}, but the directory begins at {}.",
              json_quoted(record.name), record.size_bytes, begin, place_.offset_bytes);
    return begin + record.size_bytes;
  }

  void read_local(Entry& record) {
    std::uint64_t const start = record.header_offset_bytes;
    QuotedName const name{record.name};
    if (start > place_.offset_bytes ||
        place_.offset_bytes - start < local_bytes + record.name.size())
      damaged("record {} has its header at {}, but the directory begins at {}.", name, start,
              place_.offset_bytes);
    // With room for torch's padding, one read is enough.
    Bytes header = bytes_at(start, local_bytes + record.name.size() + usual_alignment_bytes + 32);
    if (header.size() < local_bytes + record.name.size() || u32(header, 0) != local_signature)
      damaged("record {} has no header at {}.", name, start);
    std::size_t const extra_bytes = u16(header, 28);
    if (u16(header, 26) != record.name.size() ||
        text_of(header.subspan(local_bytes, record.name.size())) != record.name)
      damaged("record {} has a different name in its own header.", name);
    if (u16(header, 6) != record.flags || u16(header, 8) != 0)
      damaged(
          "record {} has flags 0x{:04x} and method {} in its own header, 0x{:04x} and 0 in the directory.",
          name, u16(header, 6), u16(header, 8), record.flags);
    std::size_t const whole = local_bytes + record.name.size() + extra_bytes;
    if (whole > place_.offset_bytes - start)
      damaged("the header of record {} runs into the directory.", name);
    if (header.size() < whole) header = bytes_at(start, whole);
    if (header.size() < whole) damaged("record {} has no header at {}.", name, start);
    compare_local_sizes(record, header, header.subspan(whole - extra_bytes, extra_bytes), name);
    record.payload_offset_bytes = start + whole;
  }

  void compare_local_sizes(Entry const& record, Bytes header, Bytes extra, QuotedName name) const {
    std::uint64_t stored = u32(header, 18);
    std::uint64_t plain = u32(header, 22);
    std::uint32_t const crc = u32(header, 14);
    auto zip64 = zip64_field(extra, name);
    bool const follows = (record.flags & flag_descriptor) != 0;
    // torch leaves zeros here when the descriptor follows, and puts the header's offset into the
    // ZIP64 field of far records.
    if (follows && stored == 0 && plain == 0 && crc == 0) return;
    for (std::uint64_t* const value : {&plain, &stored}) {
      if (*value != in_zip64 || !zip64 || zip64->size() < 8) continue;
      *value = u64(*zip64, 0);
      zip64 = zip64->subspan(8);
    }
    auto const agrees = [&](std::uint64_t local, std::uint64_t central) {
      return local == central || (follows && (local == 0 || local == in_zip64));
    };
    if (!agrees(stored, record.size_bytes) || !agrees(plain, record.size_bytes) ||
        !agrees(crc, record.crc32))
      damaged(
          "record {} has {} bytes with CRC 0x{:08x} in its own header, {} with 0x{:08x} in the directory.",
          name, plain, crc, record.size_bytes, record.crc32);
  }

  /// The size of the data descriptor between a payload and `next`; 0 if the record has none or the
  /// bytes there are not its descriptor.
  std::uint64_t descriptor_bytes(Entry const& record, std::uint64_t next) {
    std::uint64_t const begin = payload_end(record);
    if ((record.flags & flag_descriptor) == 0 || next < begin ||
        next - begin > longest_descriptor_bytes || next - begin < 12)
      return 0;
    Bytes rest = bytes_at(begin, next - begin);
    if (rest.size() < next - begin) return 0;
    rest = rest.first(next - begin);
    bool const has_signature = rest.size() == 16 || rest.size() == 24;
    if (has_signature && u32(rest, 0) != descriptor_signature) return 0;
    if (has_signature) rest = rest.subspan(4);
    if (rest.size() != 12 && rest.size() != 20) return 0;
    bool const wide = rest.size() == 20;
    std::uint64_t const stored = wide ? u64(rest, 4) : u32(rest, 4);
    std::uint64_t const plain = wide ? u64(rest, 12) : u32(rest, 8);
    bool const same =
        u32(rest, 0) == record.crc32 && stored == record.size_bytes && plain == record.size_bytes;
    return same ? next - begin : 0;
  }

  /// The bytes of the file from `offset` on: at least `bytes`, unless it ends before. Valid until
  /// the next call.
  Bytes bytes_at(std::uint64_t offset, std::size_t bytes) {
    bool const inside = offset >= window_at_ && offset - window_at_ <= window_.size() &&
                        bytes <= window_.size() - (offset - window_at_);
    if (!inside) {
      window_.resize(std::max(bytes, window_bytes));
      window_.resize(file_.read_some_at(offset, window_));
      window_at_ = offset;
    }
    return Bytes(window_).subspan(offset - window_at_);
  }

  FileRange const& file_;
  DirectoryPlace place_;
  Entry const* previous_ = nullptr;
  std::vector<std::byte> window_;  ///< the bytes of the file from window_at_ on
  std::uint64_t window_at_ = 0;
};

}  // namespace

std::vector<Entry> read_directory(FileRange const& file) { return DirectoryReader(file).read(); }

}  // namespace reshard::zip
