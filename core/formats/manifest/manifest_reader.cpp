#include <algorithm>
#include <array>
#include <utility>

#include "core/base/text/json_root.hpp"
#include "core/base/text/text_order.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/manifest/member.hpp"

namespace reshard {
namespace {

constexpr std::array<std::string_view, 5> long_members = {"tensors", "objects", "files", "stamps",
                                                          "blocks"};

std::string_view name_of(TensorDigest const& tensor) { return tensor.name; }
template <class OfFile>
std::string_view name_of(OfFile const& file) {
  return file.path;
}

/// The order of their names, of which none is there twice. Sorts instead of hashing: names can be
/// made to have one hash.
template <class Item>
std::vector<std::uint32_t> checked_order(std::string const& file, std::string_view list,
                                         std::vector<Item> const& items, std::string_view key) {
  auto const name = [&](std::size_t i) { return name_of(items[i]); };
  std::vector<std::uint32_t> order = text_order(items.size(), name);
  auto const twice = std::ranges::adjacent_find(order, {}, name);
  if (twice != order.end())
    fail(ErrorKind::source,
         "{}: {}[{}]: {} {} is listed before. The file is damaged: compare it with the original.",
         file, list, twice[1], key, json_quoted(name(*twice)));
  return order;
}

std::uint64_t hex_of(JsonPlace const& at, std::string_view key) {
  auto const value = parse_hex64(at.text(key));
  if (!value) at.fail_member(key, "a string of 16 lower-case hexadecimal digits");
  return *value;
}

std::vector<Index> shape_of(JsonPlace const& at) {
  std::vector<Index> shape;
  for (Json const& extent : at.array("shape")) {
    if (extent.integer() == nullptr || *extent.integer() < 0)
      at.fail_member("shape", "a list of integers from 0 on");
    shape.push_back(*extent.integer());
  }
  (void)checked_volume(shape, ErrorKind::source, at.file + ": " + at.place);
  return shape;
}

/// None where the member is not there.
std::vector<std::string> texts_of(JsonPlace const& at, std::string_view key) {
  std::vector<std::string> texts;
  if (at.value.find(key) == nullptr) return texts;
  for (Json const& text : at.array(key)) {
    if (text.text() == nullptr) at.fail_member(key, "a list of names");
    texts.push_back(*text.text());
  }
  return texts;
}

std::vector<std::string> axes_of(JsonPlace const& at, std::size_t dimensions) {
  std::vector<std::string> axes = texts_of(at, "axes");
  if (at.value.find("axes") == nullptr) return axes;
  if (axes.size() != dimensions)
    at.fail_member("axes", fmt::format("a list of {} names, one for each dimension,", dimensions));
  return axes;
}

/// An object has no dtype.
TensorDigest object_of(JsonPlace const& at) {
  TensorDigest tensor{.name = at.text("name"),
                      .dtype = {},
                      .shape = shape_of(at),
                      .axes = {},
                      .crc64 = hex_of(at, "crc64")};
  if (tensor.name.empty()) at.fail_member("name", "a name");
  tensor.axes = axes_of(at, tensor.shape.size());
  if (at.value.find("add") == nullptr) return tensor;
  std::int64_t const add = at.number("add");
  if (add < -1 || add > 1) at.fail_member("add", "-1, 0 or 1");
  tensor.add = static_cast<int>(add);
  return tensor;
}

TensorDigest tensor_of(JsonPlace const& at) {
  TensorDigest tensor = object_of(at);
  tensor.dtype = at.text("dtype");
  if (tensor.dtype.empty()) at.fail_member("dtype", "the name of a number format");
  return tensor;
}

std::string path_in(JsonPlace const& at) {
  std::string path = at.text("path");
  if (!is_inner_path(path) || path == manifest_name)
    at.fail_member("path", "the path of another file inside the checkpoint");
  return path;
}

std::int64_t size_in(JsonPlace const& at) {
  std::int64_t const size = at.number("size_bytes");
  if (size < 0) at.fail_member("size_bytes", "a size");
  return size;
}

FileRecord file_of(JsonPlace const& at) {
  FileRecord file{.path = {}, .size_bytes = 0, .xxh3 = hex_of(at, "xxh3")};
  file.path = path_in(at);
  file.size_bytes = static_cast<std::uint64_t>(size_in(at));
  return file;
}

StampedFile stamp_of(JsonPlace const& at) {
  StampedFile file{path_in(at), {}};
  file.stamp.bytes = size_in(at);
  file.stamp.mtime_ns = at.number("mtime_ns");
  file.stamp.ctime_ns = at.number("ctime_ns");
  std::int64_t const inode = at.number("inode");
  if (inode < 0) at.fail_member("inode", "the number of an inode");
  file.stamp.inode = static_cast<std::uint64_t>(inode);
  return file;
}

FileBlockSums blocks_of(JsonPlace const& at) {
  FileBlockSums file{path_in(at), at.text("verified"), {}};
  std::string const sums = at.text("crc64");
  for (std::size_t i = 0; i < sums.size(); i += 16) {
    auto const sum = parse_hex64(std::string_view(sums).substr(i, 16));
    if (!sum) at.fail_member("crc64", "16 lower-case hexadecimal digits for each block");
    file.crc64.push_back(*sum);
  }
  if (at.value.find("layout") != nullptr) {
    file.layout = parse_hex64(at.text("layout"));
    if (!file.layout) at.fail_member("layout", "16 lower-case hexadecimal digits");
  }
  return file;
}

/// `order` gets that of the names.
template <class Item>
std::vector<Item> list_of(JsonRoot const& root, JsonPlace const& document, std::string_view key,
                          std::string_view name, Item (*item_of)(JsonPlace const&),
                          std::vector<std::uint32_t>* order = nullptr) {
  std::vector<Item> items;
  bool const found = root.items(key, [&](std::size_t number, Json const& value) {
    items.push_back(item_of({document.file, fmt::format("{}[{}]", key, number), value}));
  });
  if (!found) (void)document.array(key);  // says what is in its place
  items.shrink_to_fit();
  std::vector<std::uint32_t> found_order = checked_order(document.file, key, items, name);
  if (order != nullptr) *order = std::move(found_order);
  return items;
}

}  // namespace

Manifest parse_manifest(std::string_view text, std::string const& file, ManifestScope scope) {
  JsonRoot const root(text, file, long_members, '[');
  Json const& json = root.members();
  JsonPlace const document{file, "", json};
  Manifest manifest;
  manifest.tool_version = document.text("reshard");
  if (std::int64_t const version = document.number("version"); version != manifest_version)
    fail(ErrorKind::source,
         "{}: has version {}, this program reads {}. Use the reshard that wrote it ({}), or a "
         "later one.",
         file, version, manifest_version, json_quoted(manifest.tool_version));
  manifest.format = document.text("format");
  if (json.find("map") != nullptr) manifest.map = document.text("map");
  manifest.frozen = texts_of(document, "frozen");
  if (json.find("vocab") != nullptr) manifest.vocab = document.number("vocab");
  manifest.total = document.text("total");
  manifest.source = document.member("source");
  manifest.job = document.member("job");
  std::vector<std::uint32_t> order;  // of the tensors' names
  if (scope == ManifestScope::all) {
    manifest.tensors = list_of(root, document, "tensors", "name", &tensor_of, &order);
    manifest.objects = list_of(root, document, "objects", "name", &object_of);
  }
  manifest.files = list_of(root, document, "files", "path", &file_of);
  if (json.find("stamps") != nullptr)
    manifest.stamps = list_of(root, document, "stamps", "path", &stamp_of);
  if (json.find("blocks") != nullptr) {
    std::int64_t const bytes = document.number("block_bytes");
    if (bytes <= 0) document.fail_member("block_bytes", "the size of a block");
    manifest.block_bytes = static_cast<std::uint64_t>(bytes);
    manifest.blocks = list_of(root, document, "blocks", "path", &blocks_of);
  }
  if (scope == ManifestScope::files) return manifest;
  std::string const total = total_digest(manifest.tensors, std::move(order));
  if (total != manifest.total)
    fail(
        ErrorKind::source,
        "{}: total is {}, that of the tensors listed is {}. The file was changed: compare it with the original.",
        file, json_quoted(manifest.total), total);
  return manifest;
}

}  // namespace reshard
