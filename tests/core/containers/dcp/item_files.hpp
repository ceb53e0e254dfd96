#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/hash/crc32.hpp"
#include "core/containers/dcp/item.hpp"
#include "core/containers/torch/zip/zip_layout.hpp"
#include "tests/support/torch_file_bytes.hpp"

/// Items made for tests.
namespace reshard::dcp {

inline std::uint32_t crc_of(std::string_view bytes) {
  return crc32(std::as_bytes(std::span(bytes)));
}

/// An item as the program writes it.
inline std::string whole_item(DType dtype, std::vector<Index> const& shape,
                              std::string_view payload) {
  ItemFrame const frame = item_frame(dtype, shape, crc_of(payload));
  return frame.head + std::string(payload) + frame.tail;
}

/// What an item consists of; the defaults are those of torch 2.7 and later.
struct ItemParts {
  std::string pickle;
  std::string payload;
  std::string folder = "archive/";
  bool version_record = true;  ///< torch 2.7
  bool byte_order = true;      ///< torch 2.1
};

/// An archive in torch's layout with any pickle and payload.
inline std::string bytes_of(ItemParts const& parts) {
  std::string out;
  std::string directory;
  zip::Layout layout;
  auto const add = [&](std::string_view name, std::string_view content) {
    ZipRecord const record = layout.place(parts.folder + std::string(name), content.size());
    zip::append_local_header(out, record);
    out += content;
    zip::append_descriptor(out, record, crc_of(content));
    zip::append_central_header(directory, record, crc_of(content));
  };
  add("data.pkl", parts.pickle);
  if (parts.version_record) {
    add(".format_version", "1");
    add(".storage_alignment", "64");
  }
  if (parts.byte_order) add("byteorder", "little");
  add("data/0", parts.payload);
  add("version", "3\n");
  if (parts.byte_order) add(".data/serialization_id", std::string(40, '7'));
  out += directory;
  zip::append_end_records(out, layout);
  return out;
}

/// A file that holds an item and bytes of something else around it.
struct ItemFile {
  explicit ItemFile(std::string const& item, std::uint64_t before = 1003)
      : file(memory.holding(std::string(before, 'x') + item + "PK and more")),
        place{.offset_bytes = before, .size_bytes = item.size()} {}

  ItemTensor read(DType dtype, std::vector<Index> const& shape) const {
    return read_tensor_item(file, place, dtype, shape, "w");
  }
  /// What reading ends in, or nothing.
  std::optional<Error> error(DType dtype, std::vector<Index> const& shape) const {
    try {
      read(dtype, shape);
    } catch (Error const& error) {
      return error;
    }
    return std::nullopt;
  }

  MemoryFile memory{};
  File file;
  ItemPlace place;
};

}  // namespace reshard::dcp
