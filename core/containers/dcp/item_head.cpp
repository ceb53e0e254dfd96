#include "core/containers/dcp/item_head.hpp"

#include <algorithm>

#include "core/base/hash/crc32.hpp"
#include "core/containers/dcp/metadata/tensor_pickle.hpp"
#include "core/containers/torch/little_endian.hpp"
#include "core/containers/torch/zip/zip_format.hpp"
#include "core/containers/torch/zip/zip_layout.hpp"

namespace reshard::dcp {
namespace {

using Bytes = std::span<std::byte const>;

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

class HeadReader {
 public:
  HeadReader(Bytes head, std::uint64_t item_bytes) : head_(head), item_bytes_(item_bytes) {}

  std::optional<ItemHead> read() {
    auto const tensor = read_pickle();
    if (!tensor) return std::nullopt;
    for (zip::SmallRecord const& record : zip::before_storages)
      if (!pass(record)) return std::nullopt;
    ItemHead result{.tensor = *tensor, .payload_offset_bytes = 0, .storage_bytes = 0};
    if (__builtin_mul_overflow(tensor->storage.count,
                               static_cast<std::uint64_t>(bits(tensor->storage.dtype)) / 8,
                               &result.storage_bytes))
      return std::nullopt;
    if (result.storage_bytes > item_bytes_) return std::nullopt;
    if (!header_is("data/0", result.storage_bytes != 0)) return std::nullopt;
    if (!place("data/0", result.storage_bytes)) return std::nullopt;
    result.payload_offset_bytes = payload_;
    if (!storage_ends_there(result)) return std::nullopt;
    return ends_as_expected() ? std::optional(std::move(result)) : std::nullopt;
  }

 private:
  /// The first record, which also names the archive's folder.
  std::optional<pickle::TensorRef> read_pickle() {
    constexpr std::string_view name = "data.pkl";
    if (!read_header(true) || name_.size() <= name.size() + 1 || !name_.ends_with(name))
      return std::nullopt;
    folder_ = name_.substr(0, name_.size() - name.size());
    if (folder_.find('/') != folder_.size() - 1) return std::nullopt;
    if (payload_ > head_.size()) return std::nullopt;
    auto pickled = match_tensor_pickle(text_of(head_.subspan(payload_)));
    if (!pickled) return std::nullopt;
    std::size_t const size = pickled->size_bytes;
    std::size_t const begin = payload_;
    if (!place(name, size)) return std::nullopt;
    // Its descriptor has its size and CRC-32; torch can be set to write no checksums.
    std::string const descriptor = text_or_nothing(begin + size, 16);
    ZipRecord const record{
        .name = {}, .header_offset_bytes = 0, .payload_offset_bytes = begin, .size_bytes = size};
    std::string with_crc;
    zip::append_descriptor(with_crc, record, crc32(head_.subspan(begin, size)));
    std::string without;
    zip::append_descriptor(without, record, 0);
    if (descriptor != with_crc && descriptor != without) return std::nullopt;
    return std::move(pickled->tensor);
  }

  std::string text_or_nothing(std::size_t at, std::size_t size) const {
    return at <= head_.size() && size <= head_.size() - at
               ? std::string(text_of(head_.subspan(at, size)))
               : std::string();
  }

  /// Reads the local header after the records placed so far: name_ and payload_. False if it is not
  /// as torch writes it.
  bool read_header(bool filled) {
    std::uint64_t const at = layout_.directory_offset_bytes();
    if (at > head_.size() || head_.size() - at < zip::local_bytes) return false;
    Bytes const header = head_.subspan(at);
    auto const u16 = [&](std::size_t place) {
      return load_little_endian<std::uint16_t>(header.subspan(place));
    };
    auto const u32 = [&](std::size_t place) {
      return load_little_endian<std::uint32_t>(header.subspan(place));
    };
    std::uint16_t const flags = filled ? zip::flag_utf8 | zip::flag_descriptor : zip::flag_utf8;
    if (u32(0) != zip::local_signature || u16(6) != flags || u16(8) != 0 || u32(14) != 0 ||
        u32(18) != 0 || u32(22) != 0)
      return false;
    std::size_t const name_bytes = u16(26);
    if (header.size() - zip::local_bytes < name_bytes) return false;
    name_ = text_of(header.subspan(zip::local_bytes, name_bytes));
    payload_ = at + zip::local_bytes + name_bytes + u16(28);
    return true;
  }

  bool header_is(std::string_view name, bool filled) {
    return read_header(filled) && name_.size() == folder_.size() + name.size() &&
           name_.starts_with(folder_) && name_.ends_with(name);
  }

  /// Accounts for a record whose header was read; false when its payload is not where torch puts
  /// it.
  bool place(std::string_view name, std::uint64_t size) {
    return layout_.place_unnamed(folder_.size() + name.size(), size) == payload_;
  }

  /// Passes a small record when it is there; false when it is not as it should be.
  bool pass(zip::SmallRecord const& record) {
    if (!header_is(record.name, true)) return true;  // older than the record
    if (record.name == "byteorder") has_byte_order_ = true;
    return text_or_nothing(payload_, record.content.size()) == record.content &&
           place(record.name, record.content.size());
  }

  /// Whether the storage's descriptor has the same size, or is not among the bytes that were read.
  /// (In the latter case a size that is wrong by less than the padding is not detected: no writer
  /// makes such a file by accident.)
  bool storage_ends_there(ItemHead const& item) const {
    if (item.storage_bytes == 0 || item.storage_bytes > head_.size()) return true;
    std::uint64_t const at = item.payload_offset_bytes + item.storage_bytes;
    if (at > head_.size() || head_.size() - at < 16) return true;
    Bytes const descriptor = head_.subspan(at, 16);
    auto const u32 = [&](std::size_t place) {
      return load_little_endian<std::uint32_t>(descriptor.subspan(place));
    };
    return u32(0) == zip::descriptor_signature && u32(8) == item.storage_bytes &&
           u32(12) == item.storage_bytes;
  }

  /// Whether the item ends as expected: the records after the storage are not read, but their sizes
  /// are known.
  bool ends_as_expected() {
    for (zip::SmallRecord const& record : zip::after_storages) {
      // Both came with the same release.
      if (record.name != "version" && !has_byte_order_) continue;
      layout_.place_unnamed(folder_.size() + record.name.size(), record.content.size());
    }
    return layout_.size_bytes() == item_bytes_;
  }

  Bytes head_;
  std::uint64_t item_bytes_;
  zip::Layout layout_;
  std::string_view folder_;  ///< with its slash
  std::string_view name_;
  std::uint64_t payload_ = 0;
  bool has_byte_order_ = false;
};

}  // namespace

std::optional<ItemHead> read_item_head(std::span<std::byte const> head, std::uint64_t item_bytes) {
  return HeadReader(head, item_bytes).read();
}

}  // namespace reshard::dcp
