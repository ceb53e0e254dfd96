#include "core/formats/manifest/manifest.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/files/file.hpp"
#include "core/base/files/listed_folders.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/hash/xxh3.hpp"
#include "core/base/member_file.hpp"
#include "core/base/text/text_order.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t largest_manifest = std::uint64_t{1} << 30;
/// Text for each tensor, unless its name is very long.
constexpr std::size_t usual_tensor_bytes = 256;

void append_hex64(std::string& text, std::uint64_t value) {
  fmt::format_to(std::back_inserter(text), "{:016x}", value);
}

/// "2, 64"
void append_sizes(std::string& text, SharedShape const& shape) {
  bool first = true;
  for (Index const size : shape) {
    if (!std::exchange(first, false)) text += ", ";
    text += fmt::format_int(size).c_str();
  }
}

/// Tensors are too many for a Json of each.
void append_tensor(std::string& text, TensorDigest const& tensor) {
  text += R"({"name": )";
  append_json_quoted(text, tensor.name);
  if (!tensor.dtype.empty()) {
    text += R"(, "dtype": )";
    append_json_quoted(text, tensor.dtype);
  }
  text += R"(, "shape": [)";
  append_sizes(text, tensor.shape);
  text += ']';
  if (!tensor.axes.empty()) {
    Json::Array const axes(tensor.axes.begin(), tensor.axes.end());
    text += R"(, "axes": )" + Json(axes).dump();
  }
  text += R"(, "crc64": ")";
  append_hex64(text, tensor.crc64);
  text += '"';
  if (tensor.add != 0) text += fmt::format(R"(, "add": {})", tensor.add);
  text += '}';
}

void append_file(std::string& text, FileRecord const& file) {
  text += Json()
              .set("path", file.path)
              .set("size_bytes", file.size_bytes)
              .set("xxh3", hex64(file.xxh3))
              .dump();
}

void append_stamp(std::string& text, StampedFile const& file) {
  text += Json()
              .set("path", file.path)
              .set("size_bytes", file.stamp.bytes)
              .set("mtime_ns", file.stamp.mtime_ns)
              .set("ctime_ns", file.stamp.ctime_ns)
              .set("inode", file.stamp.inode)
              .dump();
}

void append_blocks(std::string& text, FileBlockSums const& file) {
  std::string sums;
  for (std::uint64_t const sum : file.crc64) sums += hex64(sum);
  Json json;
  json.set("path", file.path).set("verified", file.verified);
  if (file.layout) json.set("layout", hex64(*file.layout));
  text += json.set("crc64", std::move(sums)).dump();
}

/// A member whose value takes any number of lines.
void add_member(std::string& text, std::string_view key, Json const& value) {
  text += fmt::format("{}\n  {}: ", text.empty() ? "{" : ",", json_quoted(key));
  for (char const c : value.dump(2)) {
    text += c;
    if (c == '\n') text += "  ";  // texts have no line ends of their own
  }
}

/// A list with one line for each item.
template <class Item>
void add_list(std::string& text, std::string_view key, std::vector<Item> const& items,
              void (*append)(std::string& text, Item const&)) {
  text += fmt::format(",\n  {}: [", json_quoted(key));
  for (std::size_t i = 0; i < items.size(); ++i) {
    text += i == 0 ? "\n    " : ",\n    ";
    append(text, items[i]);
  }
  text += items.empty() ? "]" : "\n  ]";
}

}  // namespace

std::string hex64(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::optional<std::uint64_t> parse_hex64(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  std::uint64_t value = 0;
  for (char const c : text) {
    std::size_t const digit = std::string_view("0123456789abcdef").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    value = value << 4U | digit;
  }
  return value;
}

std::string total_digest(std::span<TensorDigest const> tensors) {
  return total_digest(tensors, text_order(tensors.size(), [&](std::size_t i) -> std::string_view {
                        return tensors[i].name;
                      }));
}

std::string total_digest(std::span<TensorDigest const> tensors, std::vector<std::uint32_t> order) {
  for (auto begin = order.begin(); begin != order.end();) {
    auto const end = std::find_if(begin + 1, order.end(), [&](std::uint32_t i) {
      return tensors[i].name != tensors[*begin].name;
    });
    if (end - begin > 1)
      std::sort(begin, end, [&](std::uint32_t a, std::uint32_t b) {
        return std::tie(tensors[a].dtype, tensors[a].shape.sizes(), tensors[a].crc64) <
               std::tie(tensors[b].dtype, tensors[b].shape.sizes(), tensors[b].crc64);
      });
    begin = end;
  }
  Xxh3 sum;
  std::string line;
  for (std::uint32_t const i : order) {
    TensorDigest const& tensor = tensors[i];
    line.clear();
    append_json_quoted(line, tensor.name);
    line += ' ';
    line += tensor.dtype.text();
    line += " [";
    append_sizes(line, tensor.shape);
    line += "] ";
    append_hex64(line, tensor.crc64);
    line += '\n';
    sum.add(std::as_bytes(std::span(line)));
  }
  return sum.digits_128();
}

std::string manifest_text(Manifest const& manifest) {
  std::string text;
  // Moving so long a text to larger memory would hold it twice. What is not used is no memory.
  text.reserve(usual_tensor_bytes * manifest.tensors.size());
  add_member(text, "reshard", manifest.tool_version);
  add_member(text, "version", manifest_version);
  add_member(text, "format", manifest.format);
  if (!manifest.map.empty()) add_member(text, "map", manifest.map);
  if (!manifest.frozen.empty()) {
    Json frozen = Json::array();
    for (std::string const& pattern : manifest.frozen) frozen.push(pattern);
    add_member(text, "frozen", frozen);
  }
  if (manifest.vocab > 0) add_member(text, "vocab", manifest.vocab);
  add_member(text, "total", manifest.total);
  add_member(text, "source", manifest.source);
  add_member(text, "job", manifest.job);
  add_list(text, "tensors", manifest.tensors, &append_tensor);
  add_list(text, "objects", manifest.objects, &append_tensor);
  add_list(text, "files", manifest.files, &append_file);
  if (!manifest.stamps.empty()) add_list(text, "stamps", manifest.stamps, &append_stamp);
  if (!manifest.blocks.empty()) {
    add_member(text, "block_bytes", manifest.block_bytes);
    add_list(text, "blocks", manifest.blocks, &append_blocks);
  }
  text += "\n}\n";
  return text;
}

std::optional<std::string> find_manifest_text(std::filesystem::path const& checkpoint) {
  std::filesystem::path const path = checkpoint / manifest_name;
  bool const there = seen_flag("is there", path, [&] {
    if (auto const listed = listed_type(path))
      return *listed != std::filesystem::file_type::not_found;
    std::error_code ignored;
    return std::filesystem::symlink_status(path, ignored).type() !=
           std::filesystem::file_type::not_found;
  });
  if (!there) return std::nullopt;
  return read_text_file(allowed_member(checkpoint, manifest_name), largest_manifest);
}

std::optional<Manifest> find_manifest(std::filesystem::path const& checkpoint,
                                      ManifestScope scope) {
  auto const text = find_manifest_text(checkpoint);
  if (!text) return std::nullopt;
  return parse_manifest(*text, (checkpoint / manifest_name).string(), scope);
}

}  // namespace reshard
