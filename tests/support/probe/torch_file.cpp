// Reads and rewrites files of torch.save, so that tests in Python can compare with torch itself.
//
//   probe torch-file list FILE       JSON: every value of the pickle and every tensor
//   probe torch-file copy IN OUT     rewrites IN: same values, each tensor contiguous in a storage
//   of its own probe torch-file sparse OUT N…   a list of zero tensors of so many bytes each, as a
//   sparse file probe torch-file pickle IN OUT   parses a bare pickle and dumps it again

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/base/text/json.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "tests/support/probe/probe.hpp"

namespace reshard {
namespace {

Json json_of(std::vector<pickle::NodeId> const& ids) {
  Json list = Json::array();
  for (pickle::NodeId const id : ids) list.push(Json(std::int64_t{id}));
  return list;
}

Json json_of(std::vector<Index> const& sizes) {
  Json list = Json::array();
  for (Index const size : sizes) list.push(Json(size));
  return list;
}

Json json_of(pickle::Node const& node) {
  Json json = Json::object();
  json.set("kind", std::int64_t{static_cast<int>(node.kind)});
  if (node.kind == pickle::Kind::integer) json.set("integer", node.integer);
  if (node.kind == pickle::Kind::string || node.kind == pickle::Kind::global)
    json.set("text", node.text);
  if (!node.items.empty()) json.set("items", json_of(node.items));
  if (!node.pairs.empty()) json.set("pairs", json_of(node.pairs));
  if (node.callable != pickle::no_node)
    json.set("callable", std::int64_t{node.callable})
        .set("arguments", std::int64_t{node.arguments});
  if (node.state != pickle::no_node) json.set("state", std::int64_t{node.state});
  if (node.kind == pickle::Kind::tensor) json.set("tensor", std::int64_t{node.index});
  return json;
}

void list(char const* path) {
  File const file = File::open_for_reading(path);
  TorchFile const torch = read_torch_file(file);
  Json nodes = Json::array();
  for (pickle::Node const& node : torch.document.nodes) nodes.push(json_of(node));
  Json tensors = Json::array();
  for (pickle::TensorRef const& tensor : torch.document.tensors) {
    FileTensor const place = file_tensor(torch, tensor, tensor.storage.key);
    Json json = Json::object();
    json.set("key", tensor.storage.key);
    json.set("dtype", std::string(name(tensor.dtype)));
    json.set("shape", json_of(tensor.shape));
    json.set("strides", json_of(place.strides));
    json.set("offset_bytes", place.offset_bytes);
    json.set("size_bytes", place.size_bytes);
    json.set("requires_grad", tensor.requires_grad);
    json.set("parameter", tensor.parameter);
    tensors.push(std::move(json));
  }
  Json all = Json::object();
  all.set("root", std::int64_t{torch.document.root});
  all.set("nodes", std::move(nodes));
  all.set("tensors", std::move(tensors));
  std::puts(all.dump().c_str());
}

/// The elements of a tensor in row-major order.
std::vector<std::byte> elements_of(File const& file, FileTensor const& tensor) {
  std::vector<std::byte> bytes(tensor.size_bytes);
  if (tensor.strides.empty()) {
    file.read_at(tensor.offset_bytes, bytes);
    return bytes;
  }
  std::size_t const unit = static_cast<std::size_t>(bits(tensor.dtype)) / 8;
  std::vector<Index> at(tensor.shape.size());
  for (std::size_t done = 0; done < bytes.size(); done += unit) {
    std::uint64_t element = 0;
    for (std::size_t d = 0; d < at.size(); ++d)
      element += static_cast<std::uint64_t>(at[d] * tensor.strides[d]);
    file.read_at(tensor.offset_bytes + element * unit, std::span(bytes).subspan(done, unit));
    for (std::size_t d = at.size(); d > 0 && ++at[d - 1] == tensor.shape[d - 1]; --d) at[d - 1] = 0;
  }
  return bytes;
}

void copy(char const* from, char const* to) {
  File const source = File::open_for_reading(from);
  TorchFile torch = read_torch_file(source);
  std::vector<FileTensor> places;
  for (pickle::TensorRef const& tensor : torch.document.tensors)
    places.push_back(file_tensor(torch, tensor, tensor.storage.key));
  TorchFilePlan const plan =
      plan_torch_file(torch.document, std::filesystem::path(to).stem().string());
  File const target = File::create(to);
  std::vector<std::uint32_t> crcs;
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::vector<std::byte> const bytes = elements_of(source, places[i]);
    target.write_at(plan.storages[i].payload_offset_bytes, bytes);
    // Two pieces, as two ranks would have them.
    std::span const whole(bytes);
    std::size_t const cut = bytes.size() / 3;
    crcs.push_back(crc32_of_zeros(bytes.size()) ^
                   crc32_share(whole.first(cut), bytes.size() - cut) ^
                   crc32_share(whole.subspan(cut), 0));
  }
  finish_torch_file(target, plan, crcs);
}

void sparse(char const* to, std::span<char* const> sizes) {
  pickle::Document document;
  std::vector<pickle::NodeId> tensors;
  for (char const* const size : sizes)
    tensors.push_back(document.add_tensor(DType::u8, {std::atoll(size)}));
  document.root = document.add_list(tensors);
  TorchFilePlan const plan = plan_torch_file(document, std::filesystem::path(to).stem().string());
  std::vector<std::uint32_t> crcs;
  for (ZipRecord const& storage : plan.storages) crcs.push_back(crc32_of_zeros(storage.size_bytes));
  finish_torch_file(File::create(to), plan, crcs);
}

void rewrite_pickle(char const* from, char const* to) {
  std::string const bytes = read_text_file(from, std::uint64_t{1} << 30);
  write_text_file(to, pickle::dump(pickle::parse(std::as_bytes(std::span(bytes)), from)));
}

}  // namespace

int probe_torch_file(Words words) {
  std::string_view const verb = words.size() > 1 ? words[1] : "";
  if (verb == "list" && words.size() == 3) return list(words[2]), 0;
  if (verb == "copy" && words.size() == 4) return copy(words[2], words[3]), 0;
  if (verb == "sparse" && words.size() >= 4) return sparse(words[2], words.subspan(3)), 0;
  if (verb == "pickle" && words.size() == 4) return rewrite_pickle(words[2], words[3]), 0;
  std::fputs("usage: probe torch-file list FILE | copy IN OUT | sparse OUT N… | pickle IN OUT\n",
             stderr);
  return 2;
}

}  // namespace reshard
