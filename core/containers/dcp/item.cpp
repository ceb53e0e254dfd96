#include "core/containers/dcp/item.hpp"

#include <algorithm>
#include <array>

#include <fmt/ranges.h>

#include "core/base/files/file_range.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/base/text/json.hpp"
#include "core/containers/dcp/item_head.hpp"
#include "core/containers/dcp/metadata/tensor_pickle.hpp"
#include "core/containers/torch/file_kind.hpp"
#include "core/containers/torch/pickle/carried_calls.hpp"
#include "core/containers/torch/pickle/pickle_builder.hpp"
#include "core/containers/torch/storage_check.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/containers/torch/torch_types.hpp"
#include "core/containers/torch/zip/zip_layout.hpp"

namespace reshard::dcp {
namespace {

constexpr std::size_t head_bytes = 4096;

/// Calls whose result is a tensor, but not a strided array of numbers in a storage.
struct OtherTensor {
  std::string_view callable;
  std::string_view what;
};
constexpr std::array other_tensors = {
    OtherTensor{"_rebuild_qtensor", "a quantised tensor"},
    OtherTensor{"_rebuild_sparse_tensor", "a sparse tensor"},
    OtherTensor{"_rebuild_sparse_csr_tensor", "a sparse tensor"},
    OtherTensor{"_rebuild_nested_tensor", "a nested tensor"},
    OtherTensor{"_rebuild_meta_tensor_no_storage", "a meta tensor, which has no elements"},
    OtherTensor{"_rebuild_wrapper_subclass", "a tensor of a wrapper class"},
    OtherTensor{"_rebuild_device_tensor_from_numpy", "a tensor of a device without storages"},
    OtherTensor{"_rebuild_device_tensor_from_cpu_tensor", "a tensor of a device without storages"},
    OtherTensor{"_rebuild_tensor_v2", "a conjugated or negated tensor"},
    OtherTensor{"_rebuild_tensor_v3", "a tensor of an unknown element type, conjugated or negated"},
    OtherTensor{"_rebuild_parameter", "a Parameter around something other than a plain tensor"},
};

/// The description of a value that is not a plain tensor.
std::string described(pickle::Document const& document) {
  auto const [module, callable] = document.class_of(document.root);
  if (callable.empty())
    return fmt::format("a {}", pickle::kind_name(document.at(document.root).kind));
  if (document.at(document.root).kind == pickle::Kind::reduce &&
      callable.starts_with("_rebuild_from_type")) {
    pickle::Node const& arguments = document.at(document.at(document.root).arguments);
    for (pickle::NodeId const argument : arguments.items)
      if (auto const [of, name] = document.class_of(argument);
          !name.empty() && !name.starts_with("_rebuild_"))
        return fmt::format("a tensor of class {}.{}", of, name);
  }
  for (OtherTensor const& other : other_tensors)
    if (other.callable == callable) return fmt::format("{} ({}.{})", other.what, module, callable);
  return fmt::format("an object of {}.{}", module, callable);
}

bool is_of_torchao(pickle::Document const& document, pickle::NodeId node) {
  auto const [module, name] = document.class_of(node);
  return module == "torchao" || module.starts_with("torchao.");
}

/// The arguments (class, dtype, shape, …) of a tensor of a class of torchao, else nullptr.
pickle::Node const* torchao_arguments(pickle::Document const& document) {
  auto const* const found = pickle::wrapper_arguments(document, document.at(document.root));
  return found != nullptr && found->items.size() >= 3 && is_of_torchao(document, found->items[0])
             ? found
             : nullptr;
}

std::string shape_text(std::span<Index const> shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

class ItemReader {
 public:
  ItemReader(File const& file, ItemPlace const& place, std::string_view key,
             TorchaoTensors torchao = TorchaoTensors::refused)
      : range_(file, place.offset_bytes, place.size_bytes), key_(key), torchao_(torchao) {}

  /// The tensor, and the record that contains it.
  struct Found {
    FileTensor tensor;
    StorageRecord record;
    bool object = false;
  };

  /// Another way of torch to save: one safetensors file of all tensors in a file of a rank, of
  /// which .metadata gives no places.
  void refuse_safetensors(std::span<std::byte const> head) const {
    if (begins_like_safetensors(head))
      fail(ErrorKind::source,
           "{}: a safetensors file is in it, as FileSystemWriter(serialization_format = "
           "SerializationFormat.SAFETENSORS) saves; torch's FileSystemReader reads no such folder. "
           "Save again without that option, or with HuggingFaceStorageWriter.",
           range_.name());
  }

  Found read() const try {
    std::array<std::byte, head_bytes> buffer;
    std::span const head = std::span(buffer).first(range_.read_some_at(0, buffer));
    if (auto const found = read_item_head(head, range_.size_bytes())) {
      StorageRecord const record{
          .offset_bytes = range_.offset_bytes() + found->payload_offset_bytes,
          .size_bytes = found->storage_bytes,
          .crc32 = {}};
      expect_inside(range_, found->tensor, record);
      return {storage_tensor(record, found->tensor, {}), record, false};
    }
    refuse_safetensors(head);
    return read_archive();
  } catch (Error const& error) {
    throw error.in(fmt::format("tensor {}", json_quoted(key_)));
  }

  void expect(FileTensor const& tensor, DType dtype, std::span<Index const> shape) const {
    if (tensor.dtype == dtype && std::ranges::equal(tensor.shape, shape)) return;
    fail(ErrorKind::source,
         "{}: the item of tensor {} holds {} of shape {}, .metadata has {} of shape {}. The files "
         "are from different saves, or one of them is damaged: fetch the checkpoint again.",
         range_.name(), json_quoted(key_), name(tensor.dtype), shape_text(tensor.shape),
         name(dtype), shape_text(shape));
  }

 private:
  Found read_archive() const {
    TorchFile const torch = read_torch_file(range_);
    pickle::Node const& root = torch.document.at(torch.document.root);
    if (root.kind != pickle::Kind::tensor && torchao_arguments(torch.document) != nullptr)
      return read_torchao(torch.document);
    if (root.kind != pickle::Kind::tensor)
      fail(ErrorKind::source,
           "{}: the item holds {}, expected a plain tensor. Save it as a detached, dense "
           "torch.Tensor.",
           range_.name(), described(torch.document));
    pickle::TensorRef const& tensor = torch.document.tensors[root.index];
    return {file_tensor(torch, tensor, {}), torch.storages.at(tensor.storage.key), false};
  }

  /// The dtype and shape that the object represents, as `.metadata` has them.
  Found read_torchao(pickle::Document const& document) const {
    if (torchao_ == TorchaoTensors::refused)
      fail(ErrorKind::source,
           "{}: the item holds {}, a quantised tensor whose parts torchao alone puts together. "
           "Only a job with target.format = \"dcp\" that keeps all names and values carries it, as "
           "it is. For another use save the model with weights that are dequantised "
           "(weight.dequantize()), or by transformers' save_pretrained.",
           range_.name(), described(document));
    pickle::Node const& arguments = *torchao_arguments(document);
    Found found;
    found.object = true;
    auto const dtype = pickle::dtype_from_torch_name(document.class_of(arguments.items[1]).second);
    pickle::Node const& shape = document.at(arguments.items[2]);
    bool readable = dtype.has_value() && shape.kind == pickle::Kind::tuple;
    std::vector<Index> extents;
    for (pickle::NodeId const extent : shape.items) {
      readable = readable && document.at(extent).kind == pickle::Kind::integer;
      extents.push_back(document.at(extent).integer);
    }
    if (!readable)
      fail(ErrorKind::source,
           "{}: {} has no dtype and shape that can be read. The file is damaged, or of another "
           "release of torch: save it again.",
           range_.name(), described(document));
    found.tensor.dtype = *dtype;
    found.tensor.shape = std::move(extents);
    return found;
  }

  FileRange range_;
  std::string_view key_;
  TorchaoTensors torchao_;
};

constexpr std::string_view folder = "archive/";
constexpr std::string_view pickle_name = "data.pkl";
constexpr std::string_view storage_name = "data/0";

std::uint64_t payload_bytes_of(DType dtype, std::span<Index const> shape) {
  auto const volume =
      static_cast<std::uint64_t>(checked_volume(shape, ErrorKind::source, "tensor shape"));
  return checked_mul(volume, static_cast<std::uint64_t>(bits(dtype)) / 8, ErrorKind::source,
                     "tensor size");
}

/// Writes the records of an item one after the other.
class FrameWriter {
 public:
  void append(std::string& out, std::string_view name, std::string_view content) {
    ZipRecord const record = place(name, content.size());
    std::uint32_t const crc = crc32(std::as_bytes(std::span(content)));
    zip::append_local_header(out, record);
    out += content;
    close(out, record, crc);
  }
  ZipRecord place(std::string_view name, std::uint64_t size) {
    return layout_.place(std::string(folder).append(name), size);
  }
  /// Appends the bytes after a payload.
  void close(std::string& out, ZipRecord const& record, std::uint32_t crc) {
    zip::append_descriptor(out, record, crc);
    zip::append_central_header(directory_, record, crc);
  }
  void end(std::string& out) const {
    out += directory_;
    zip::append_end_records(out, layout_);
  }

 private:
  zip::Layout layout_;
  std::string directory_;
};

}  // namespace

ItemTensor read_tensor_item(File const& file, ItemPlace const& place, DType dtype,
                            std::span<Index const> shape, std::string_view key,
                            TorchaoTensors torchao) {
  ItemReader const reader(file, place, key, torchao);
  ItemReader::Found found = reader.read();
  reader.expect(found.tensor, dtype, shape);
  return {.payload_offset_bytes = found.tensor.offset_bytes,
          .strides = std::move(found.tensor.strides),
          .storage_offset_bytes = found.record.offset_bytes,
          .storage_bytes = found.record.size_bytes,
          .object = found.object};
}

std::optional<ItemObject> object_in_item(File const& file, ItemPlace const& place) {
  FileRange const range(file, place.offset_bytes, place.size_bytes);
  TorchFile const torch = read_torch_file(range);
  if (torch.document.at(torch.document.root).kind == pickle::Kind::tensor) return std::nullopt;
  return ItemObject{described(torch.document), torchao_arguments(torch.document) != nullptr};
}

ItemLayout item_layout(DType dtype, std::span<Index const> shape) {
  ItemLayout result{
      .payload_offset_bytes = 0, .payload_bytes = payload_bytes_of(dtype, shape), .size_bytes = 0};
  zip::Layout layout;
  auto const place = [&](std::string_view name, std::uint64_t size) {
    return layout.place_unnamed(folder.size() + name.size(), size);
  };
  place(pickle_name, tensor_pickle(dtype, shape).size());
  for (zip::SmallRecord const& record : zip::before_storages)
    place(record.name, record.content.size());
  result.payload_offset_bytes = place(storage_name, result.payload_bytes);
  for (zip::SmallRecord const& record : zip::after_storages)
    place(record.name, record.content.size());
  result.size_bytes = layout.size_bytes();
  return result;
}

ItemFrame item_frame(DType dtype, std::span<Index const> shape, std::uint32_t payload_crc32) {
  ItemFrame frame;
  FrameWriter writer;
  writer.append(frame.head, pickle_name, tensor_pickle(dtype, shape));
  for (zip::SmallRecord const& record : zip::before_storages)
    writer.append(frame.head, record.name, record.content);
  ZipRecord const storage = writer.place(storage_name, payload_bytes_of(dtype, shape));
  zip::append_local_header(frame.head, storage);
  writer.close(frame.tail, storage, payload_crc32);
  for (zip::SmallRecord const& record : zip::after_storages)
    writer.append(frame.tail, record.name, record.content);
  writer.end(frame.tail);
  return frame;
}

}  // namespace reshard::dcp
