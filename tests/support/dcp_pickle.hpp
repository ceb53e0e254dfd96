#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/containers/dcp/metadata/metadata.hpp"
#include "tests/support/torch_file_bytes.hpp"

/// `.metadata` pickles made value by value, right or wrong on purpose. Nothing is stored in the
/// memo.
namespace reshard::raw {

inline constexpr std::string_view metadata_module = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view filesystem_module = "torch.distributed.checkpoint.filesystem";

inline std::string text(std::string_view value) {
  if (value.size() < 256)
    return "\x8c" + std::string(1, static_cast<char>(value.size())) + std::string(value);
  std::string out = "X";
  append_little_endian(out, static_cast<std::uint32_t>(value.size()));
  return out + std::string(value);
}
inline std::string number(std::int64_t value) {
  std::string out = "\x8a\x08";
  append_little_endian(out, static_cast<std::uint64_t>(value));
  return out;
}
inline std::string global(std::string_view module, std::string_view name) {
  return text(module) + text(name) + "\x93";
}
inline std::string tuple(std::vector<std::string> const& items) {
  std::string out = "(";
  for (std::string const& item : items) out += item;
  return out + "t";
}
inline std::string numbers(std::vector<Index> const& values) {
  std::vector<std::string> items;
  for (Index const value : values) items.push_back(number(value));
  return tuple(items);
}
inline std::string list(std::vector<std::string> const& items) {
  std::string out = "](";
  for (std::string const& item : items) out += item;
  return out + "e";
}
inline std::string call(std::string const& callable, std::string const& arguments) {
  return callable + arguments + "R";
}
inline std::string size(std::vector<Index> const& values) {
  return call(global("torch", "Size"), numbers(values) + "\x85");
}
/// Keys and values in turn.
inline std::string dict(std::vector<std::string> const& items) {
  std::string out = "}(";
  for (std::string const& item : items) out += item;
  return out + "u";
}
inline std::string made(std::string const& type) { return type + ")\x81"; }
inline std::string object(std::string_view module, std::string_view name,
                          std::string const& state) {
  return made(global(module, name)) + state + "b";
}

inline std::string torch_dtype(std::string_view name) { return global("torch", name); }
inline std::string layout(std::string_view name) {
  return call(global("torch.serialization", "_get_layout"), text(name) + "\x85");
}
inline std::string memory_format() {
  return call(global(metadata_module, "_MEM_FORMAT_ENCODING"), number(0) + "\x85");
}
inline std::string property_values(std::string const& dtype,
                                   std::string const& strides = layout("torch.strided")) {
  return tuple({dtype, strides, "\x89", memory_format(), "\x89"});
}
inline std::string properties(std::string const& state, std::string_view module = metadata_module) {
  return object(module, "TensorProperties", state);
}
inline std::string chunk(std::string const& offsets, std::string const& sizes) {
  return object(metadata_module, "ChunkStorageMetadata",
                dict({text("offsets"), offsets, text("sizes"), sizes}));
}
inline std::string tensor(std::string const& properties, std::string const& size,
                          std::string const& chunks) {
  return object(metadata_module, "TensorStorageMetadata",
                dict({text("properties"), properties, text("size"), size, text("chunks"), chunks}));
}
inline std::string bytes() { return made(global(metadata_module, "BytesStorageMetadata")); }
inline std::string index(std::string_view fqn, std::optional<std::string> const& offset) {
  std::vector<std::string> state = {text("fqn"), text(fqn), text("index"),
                                    offset ? number(0) : "N"};
  if (offset) state.insert(state.end(), {text("offset"), *offset});
  return object(metadata_module, "MetadataIndex", dict(state));
}
inline std::string place(std::string_view path, Index offset, Index length) {
  return object(filesystem_module, "_StorageInfo",
                dict({text("relative_path"), text(path), text("offset"), number(offset),
                      text("length"), number(length)}));
}

/// One bfloat16 tensor "w" of 2 x 3 in one chunk; every part can be exchanged.
struct Parts {
  std::string properties = raw::properties(property_values(torch_dtype("bfloat16")));
  std::string size = raw::size({2, 3});
  std::string chunks = list({chunk(raw::size({0, 0}), raw::size({2, 3}))});
  std::string key = text("w");
  std::optional<std::string> entry = {};       ///< instead of the tensor made of these
  std::vector<std::string> more_entries = {};  ///< keys and values
  std::string index = raw::index("w", raw::size({0, 0}));
  std::string place = raw::place("__0_0.distcp", 0, 1577);
  std::vector<std::string> more_places = {};  ///< keys and values
  std::string planner_data = dict({text("w"), tuple({text("w")})});
  std::optional<std::string> state_dict_metadata = {};  ///< instead of the dict made of these
  std::optional<std::string> storage_data = {};         ///< the same
  std::vector<std::string> more_attributes = {text("storage_meta"), "N"};
};

inline std::string joined(std::vector<std::string> front, std::vector<std::string> const& back) {
  front.insert(front.end(), back.begin(), back.end());
  return dict(front);
}

inline std::string attributes(Parts const& parts) {
  std::string const entry =
      parts.entry.value_or(tensor(parts.properties, parts.size, parts.chunks));
  std::string const entries =
      parts.state_dict_metadata.value_or(joined({parts.key, entry}, parts.more_entries));
  std::string const places =
      parts.storage_data.value_or(joined({parts.index, parts.place}, parts.more_places));
  return joined({text("state_dict_metadata"), entries, text("planner_data"), parts.planner_data,
                 text("storage_data"), places},
                parts.more_attributes);
}

inline std::string file_of(std::string const& value) { return "\x80\x04" + value + "."; }
inline std::string file_of(Parts const& parts) {
  return file_of(object(metadata_module, "Metadata", attributes(parts)));
}

inline dcp::Metadata read(std::string_view bytes) {
  static MemoryFile const memory;
  return dcp::read_metadata(memory.holding(bytes));
}

/// The Error that reading these bytes ends in, or nothing.
inline std::optional<Error> error_of(std::string_view bytes) {
  try {
    read(bytes);
  } catch (Error const& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace reshard::raw
