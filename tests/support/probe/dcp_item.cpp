// Items of distributed checkpoints, read and written for tests in Python that compare with torch
// itself.
//
//   probe dcp-item item-read FILE OFFSET LENGTH DTYPE SHAPE   JSON: place and strides of the
//   tensor; SHAPE is 2,3 or - for a scalar probe dcp-item item-write OUT DTYPE SHAPE BYTES_FILE an
//   item with these payload bytes probe dcp-item golden-item OUT                            bf16
//   [2, 3] of the raw numbers 0 to 5 probe dcp-item list-from-dict IN OUT common.pt as the item
//   common_state/shard_0_1 probe dcp-item dict-from-list IN OUT                      and back

#include <charconv>
#include <cstdio>
#include <string>

#include "core/base/hash/crc32.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/dcp/item.hpp"
#include "tests/support/probe/probe.hpp"

namespace reshard {
namespace {

using namespace dcp;

constexpr std::uint64_t largest_file_bytes = std::uint64_t{1} << 30;

template <class T>
T number(std::string_view word) {
  T value{};
  auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size())
    fail(ErrorKind::usage, "{}: expected a number.", word);
  return value;
}

DType dtype_of(std::string_view word) {
  auto const dtype = dtype_from_name(word);
  if (!dtype) fail(ErrorKind::usage, "{}: expected an element type.", word);
  return *dtype;
}

std::vector<Index> shape_of(std::string_view word) {
  std::vector<Index> shape;
  if (word == "-") return shape;
  for (std::size_t begin = 0; begin <= word.size();) {
    std::size_t const end = std::min(word.find(',', begin), word.size());
    shape.push_back(number<Index>(word.substr(begin, end - begin)));
    begin = end + 1;
  }
  return shape;
}

void item_read(std::span<char* const> words) {
  File const file = File::open_for_reading(words[0]);
  ItemPlace const place{.offset_bytes = number<std::uint64_t>(words[1]),
                        .size_bytes = number<std::uint64_t>(words[2])};
  ItemTensor const tensor =
      read_tensor_item(file, place, dtype_of(words[3]), shape_of(words[4]), "tensor");
  Json strides = Json::array();
  for (Index const stride : tensor.strides) strides.push(Json(stride));
  Json json = Json::object();
  json.set("payload_offset_bytes", tensor.payload_offset_bytes).set("strides", std::move(strides));
  std::puts(json.dump().c_str());
}

void write_item(char const* path, DType dtype, std::vector<Index> const& shape,
                std::string const& payload) {
  if (payload.size() != item_layout(dtype, shape).payload_bytes)
    fail(ErrorKind::usage, "{} bytes, expected {}.", payload.size(),
         item_layout(dtype, shape).payload_bytes);
  ItemFrame const frame = item_frame(dtype, shape, crc32(std::as_bytes(std::span(payload))));
  write_text_file(path, frame.head + payload + frame.tail);
}

/// Rewrites IN with another root over the same values.
template <class ChangeRoot>
void rewrite(char const* from, char const* to, std::string_view archive, ChangeRoot&& change_root) {
  File const file = File::open_for_reading(from);
  TorchFile torch = read_torch_file(file);
  std::vector<FileTensor> places;
  for (pickle::TensorRef const& tensor : torch.document.tensors)
    places.push_back(file_tensor(torch, tensor, {}));
  change_root(torch.document);
  write_text_file(to, torch_file_bytes(torch.document, archive, [&](std::size_t i) {
                    std::string bytes(places[i].size_bytes, '\0');
                    file.read_at(places[i].offset_bytes, std::as_writable_bytes(std::span(bytes)));
                    return bytes;
                  }));
}

}  // namespace

int probe_dcp_item(Words words) {
  std::string_view const verb = words.size() > 1 ? words[1] : "";
  auto const rest = words.subspan(std::min<std::size_t>(words.size(), 2));
  if (verb == "item-read" && rest.size() == 5) return item_read(rest), 0;
  if (verb == "item-write" && rest.size() == 4)
    return write_item(rest[0], dtype_of(rest[1]), shape_of(rest[2]),
                      read_text_file(rest[3], largest_file_bytes)),
           0;
  if (verb == "golden-item" && rest.size() == 1)
    return write_item(rest[0], DType::bf16, {2, 3}, std::string("\0\0\1\0\2\0\3\0\4\0\5\0", 12)), 0;
  if (verb == "list-from-dict" && rest.size() == 2)
    return rewrite(rest[0], rest[1], "archive",
                   [](pickle::Document& document) {
                     document.root = document.add_list({document.root});
                   }),
           0;
  if (verb == "dict-from-list" && rest.size() == 2)
    return rewrite(rest[0], rest[1], "common",
                   [](pickle::Document& document) {
                     document.root = document.at(document.root).items.at(0);
                   }),
           0;
  std::fputs(
      "usage: probe dcp-item item-read | item-write | golden-item | list-from-dict | dict-from-list …\n",
      stderr);
  return 2;
}

}  // namespace reshard
