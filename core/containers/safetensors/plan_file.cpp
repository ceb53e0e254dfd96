#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include <fmt/ranges.h>
#include <simdjson.h>

#include "core/base/text/json.hpp"
#include "core/containers/safetensors/rules.hpp"

namespace reshard::safetensors {
namespace {

/// The data section starts at a multiple of this.
constexpr std::uint64_t data_alignment(DataLayout data_layout) {
  return data_layout == DataLayout::for_clones ? clone_block_bytes : 8;
}

void check_names(std::span<TensorSpec const> tensors) {
  std::unordered_set<std::string_view> names;
  for (TensorSpec const& tensor : tensors)
    if (!names.insert(tensor.name).second)
      fail(ErrorKind::usage,
           "tensor '{}': two tensors of one file have this name. Correct the map so that every "
           "name appears once.",
           shown(tensor.name));
}

/// The dtype in a header.
DType stated(DType dtype) { return dtype == DType::f4_x2 ? DType::f4 : dtype; }

/// Rule 22, the order of the safetensors library: by dtype as DType has them, from the last, so
/// that each tensor begins at a multiple of its element size without a gap, which the format
/// forbids. Tensors of complete blocks come first and keep each other aligned to blocks.
std::vector<std::size_t> file_order(std::span<TensorSpec const> tensors, DataLayout data_layout) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (data_layout == DataLayout::as_given) return order;
  std::ranges::sort(order, {}, [&](std::size_t i) {
    bool const is_behind =
        data_layout == DataLayout::for_clones && tensor_bytes(tensors[i]) % clone_block_bytes != 0;
    return std::tuple(is_behind, -static_cast<int>(stated(tensors[i].dtype)),
                      std::string_view(tensors[i].name));
  });
  return order;
}

void append_metadata(std::string& json,
                     std::span<std::pair<std::string, std::string> const> metadata) {
  json += json_quoted(metadata_name) + ":{";
  std::unordered_set<std::string_view> keys;
  for (auto const& [key, text] : metadata) {
    if (!simdjson::validate_utf8(key) || !simdjson::validate_utf8(text) || !keys.insert(key).second)
      fail(ErrorKind::usage,
           "__metadata__: the entry '{}' is not UTF-8 or appears twice. Give every key once, as "
           "UTF-8.",
           shown(key));
    if (keys.size() > 1) json += ',';
    json += json_quoted(key) + ':' + json_quoted(text);
  }
  json += '}';
}

void append_tensor(std::string& json, TensorSpec const& tensor, std::uint64_t begin,
                   std::uint64_t end) {
  json += json_quoted(tensor.name);
  std::vector<Index> shape = tensor.shape;
  if (tensor.dtype == DType::f4_x2) shape.back() *= 2;  // rule 21 keeps it from an overflow
  fmt::format_to(std::back_inserter(json),
                 R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                 name(stated(tensor.dtype)), fmt::join(shape, ","), begin, end);
}

/// Rules 23 and 24.
std::string with_length_and_padding(std::string_view json, std::uint64_t alignment_bytes) {
  std::uint64_t const used = length_bytes + json.size();
  std::uint64_t const start = (used + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  std::uint64_t const length = start - length_bytes;
  if (length > largest_written_header_bytes)
    fail(ErrorKind::usage,
         "a header of {} bytes is needed, readers of the Hugging Face Hub accept at most {}. "
         "Choose a smaller shard size, so that fewer tensors share a file.",
         length, largest_written_header_bytes);
  std::string header(length_bytes, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  header += json;
  header.resize(start, ' ');
  return header;
}

}  // namespace

// docs/formats/safetensors.md, rules 19 to 21.
std::uint64_t tensor_bytes(TensorSpec const& tensor) {
  auto const refuse = [&](std::string_view why, std::string_view next) {
    fail(ErrorKind::usage, "tensor '{}': {}, which a safetensors file cannot hold. {}",
         shown(tensor.name), why, next);
  };
  if (tensor.name == metadata_name) refuse("the name is reserved", "Map it to another name.");
  if (tensor.name.size() > largest_name_bytes)
    refuse(
        fmt::format("the name has {} bytes, more than {}", tensor.name.size(), largest_name_bytes),
        "Map it to a shorter name.");
  if (!simdjson::validate_utf8(tensor.name.text()))
    refuse("the name is not UTF-8", "Map it to another name.");
  if (!in_safetensors(tensor.dtype))
    refuse(fmt::format("the dtype is {}", name(tensor.dtype)), "Cast it, or leave it out.");
  if (tensor.shape.size() > largest_rank)
    refuse(fmt::format("it has {} dimensions, more than {}", tensor.shape.size(), largest_rank),
           "Reshape it.");
  if (std::ranges::any_of(tensor.shape, [](Index extent) { return extent < 0; }))
    refuse(fmt::format("the shape is {}", shown_shape(tensor.shape)),
           "Every dimension must be 0 or more.");
  if (tensor.dtype == DType::f4_x2 &&
      (tensor.shape.empty() || tensor.shape.back() > std::numeric_limits<Index>::max() / 2))
    refuse(fmt::format("shape {} of F4_X2 has no last dimension that can be doubled",
                       shown_shape(tensor.shape)),
           "Give it one, or leave it out.");
  auto const bytes = packed_bytes(tensor.dtype, tensor.shape);
  if (!bytes)
    refuse(fmt::format("shape {} of {} is not a whole number of bytes below 2^61",
                       shown_shape(tensor.shape), name(tensor.dtype)),
           "Change the shape.");
  return *bytes;
}

FilePlan plan_file(std::span<TensorSpec const> tensors,
                   std::span<std::pair<std::string, std::string> const> metadata,
                   DataLayout data_layout) {
  check_names(tensors);
  FilePlan plan;
  plan.offset_bytes.resize(tensors.size());
  std::string json = "{";
  if (!metadata.empty()) append_metadata(json, metadata);
  std::uint64_t end = 0;
  for (std::size_t const i : file_order(tensors, data_layout)) {
    std::uint64_t const begin = end;
    end = checked_add(begin, tensor_bytes(tensors[i]), ErrorKind::usage,
                      "bytes of one safetensors file");
    if (json.size() > 1) json += ',';
    append_tensor(json, tensors[i], begin, end);
    plan.offset_bytes[i] = begin;
  }
  json += '}';
  plan.header = with_length_and_padding(json, data_alignment(data_layout));
  for (std::uint64_t& offset : plan.offset_bytes) offset += plan.header.size();
  plan.size_bytes = checked_add(end, std::uint64_t{plan.header.size()}, ErrorKind::usage,
                                "bytes of one safetensors file");
  return plan;
}

std::optional<FilePlan> plan_file_like(std::span<std::byte const> header, std::uint64_t file_bytes,
                                       std::span<TensorSpec const> tensors) {
  Header const known = parse_header(header, file_bytes, "the header to repeat");
  if (known.tensors.size() != tensors.size()) return std::nullopt;
  std::unordered_map<std::string_view, FileTensor const*> by_name;
  for (FileTensor const& tensor : known.tensors) by_name.emplace(tensor.name.text(), &tensor);
  FilePlan plan;
  for (TensorSpec const& tensor : tensors) {
    auto const found = by_name.find(tensor.name);
    if (found == by_name.end() || found->second->dtype != tensor.dtype ||
        found->second->shape != tensor.shape)
      return std::nullopt;
    plan.offset_bytes.push_back(found->second->offset_bytes);
    by_name.erase(found);  // a duplicate name is found only once
  }
  auto const* const text = reinterpret_cast<char const*>(header.data());
  plan.header.assign(text, known.header_bytes);
  plan.size_bytes = file_bytes;
  return plan;
}

}  // namespace reshard::safetensors
