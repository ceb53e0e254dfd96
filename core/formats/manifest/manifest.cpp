#include "core/formats/manifest/manifest.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/ranges.h>

#include "core/base/file.hpp"
#include "core/base/listed_folders.hpp"
#include "core/base/member_file.hpp"
#include "core/base/sight.hpp"
#include "core/base/xxh3.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t largest_manifest = std::uint64_t{1} << 30;

Json tensor_json(TensorDigest const& tensor) {
  Json json;
  json.set("name", tensor.name.text());
  if (!tensor.dtype.empty()) json.set("dtype", tensor.dtype.text());
  Json::Array const shape(tensor.shape.begin(), tensor.shape.end());
  Json::Array const axes(tensor.axes.begin(), tensor.axes.end());
  json.set("shape", shape);
  if (!axes.empty()) json.set("axes", axes);
  json.set("crc64", hex64(tensor.crc64));
  if (tensor.add != 0) json.set("add", tensor.add);
  return json;
}

Json file_json(FileRecord const& file) {
  Json json;
  return json.set("path", file.path)
      .set("size_bytes", file.size_bytes)
      .set("xxh3", hex64(file.xxh3));
}

Json stamp_json(StampedFile const& file) {
  Json json;
  return json.set("path", file.path)
      .set("size_bytes", file.stamp.bytes)
      .set("mtime_ns", file.stamp.mtime_ns)
      .set("ctime_ns", file.stamp.ctime_ns)
      .set("inode", file.stamp.inode);
}

Json blocks_json(FileBlockSums const& file) {
  std::string sums;
  for (std::uint64_t const sum : file.crc64) sums += hex64(sum);
  Json json;
  json.set("path", file.path).set("verified", file.verified);
  if (file.layout) json.set("layout", hex64(*file.layout));
  return json.set("crc64", std::move(sums));
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
              Json (*json_of)(Item const&)) {
  text += fmt::format(",\n  {}: [", json_quoted(key));
  for (std::size_t i = 0; i < items.size(); ++i) {
    text += i == 0 ? "\n    " : ",\n    ";
    text += json_of(items[i]).dump();
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
  std::vector<TensorDigest const*> order;
  order.reserve(tensors.size());
  for (TensorDigest const& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](TensorDigest const* a, TensorDigest const* b) {
    if (auto const order = a->name <=> b->name; order != 0) return order < 0;
    return std::tie(a->dtype, a->shape.sizes(), a->crc64) <
           std::tie(b->dtype, b->shape.sizes(), b->crc64);
  });
  Xxh3 sum;
  std::string line;
  for (TensorDigest const* tensor : order) {
    line.clear();
    fmt::format_to(std::back_inserter(line), "{} {} [{}] {:016x}\n", json_quoted(tensor->name),
                   tensor->dtype, fmt::join(tensor->shape, ", "), tensor->crc64);
    sum.add(std::as_bytes(std::span(line)));
  }
  return sum.digits_128();
}

std::string manifest_text(Manifest const& manifest) {
  std::string text;
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
  add_list(text, "tensors", manifest.tensors, &tensor_json);
  add_list(text, "objects", manifest.objects, &tensor_json);
  add_list(text, "files", manifest.files, &file_json);
  if (!manifest.stamps.empty()) add_list(text, "stamps", manifest.stamps, &stamp_json);
  if (!manifest.blocks.empty()) {
    add_member(text, "block_bytes", manifest.block_bytes);
    add_list(text, "blocks", manifest.blocks, &blocks_json);
  }
  return text + "\n}\n";
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
