#include "core/containers/torch/storage_check.hpp"

#include <fmt/ranges.h>

#include "core/base/text/json.hpp"

namespace reshard {
namespace {

std::uint64_t element_bytes(DType dtype) { return static_cast<std::uint64_t>(bits(dtype)) / 8; }

template <class... Args>
[[noreturn]] void damaged(FileRange const& file, std::string_view key,
                          fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorKind::source, "{}: storage {}: {} {}", file.name(), json_quoted(key),
       fmt::format(format, std::forward<Args>(args)...), damaged_storage_advice);
}

std::string listed_sizes(std::vector<Index> const& sizes) {
  return fmt::format("({})", fmt::join(sizes, ", "));
}

/// The number of the tensor's elements; throws if its shape, strides or offset are impossible.
Index volume_of(FileRange const& file, pickle::TensorRef const& tensor) {
  std::string const& key = tensor.storage.key;
  Index volume = 1;
  for (Index const size : tensor.shape)
    if (size < 0) damaged(file, key, "a tensor has the size {}, below zero.", size);
  for (Index const size : tensor.shape)
    if (size == 0) volume = 0;
  for (Index const size : tensor.shape)
    if (__builtin_mul_overflow(volume, size, &volume))
      damaged(file, key, "a tensor of shape {} has 2^63 elements or more.",
              listed_sizes(tensor.shape));
  if (tensor.offset < 0)
    damaged(file, key, "a tensor begins at element {}, below zero.", tensor.offset);
  for (Index const stride : tensor.strides)
    if (stride < 0) damaged(file, key, "a tensor has the stride {}, below zero.", stride);
  return volume;
}

bool is_row_major(pickle::TensorRef const& tensor) {
  Index stride = 1;
  for (std::size_t d = tensor.shape.size(); d > 0; --d) {
    if (tensor.shape[d - 1] != 1 && tensor.strides[d - 1] != stride) return false;
    stride *= tensor.shape[d - 1];  // fits: the volume was checked
  }
  return true;
}

}  // namespace

void expect_right_size(FileRange const& file, pickle::StorageRef const& storage,
                       StorageRecord const& record) {
  std::uint64_t const unit = element_bytes(storage.dtype);
  if (record.size_bytes % unit != 0 || record.size_bytes / unit != storage.count)
    damaged(file, storage.key,
            "the pickle gives it {} elements of {} bytes, its record has {} bytes.", storage.count,
            unit, record.size_bytes);
}

void expect_inside(FileRange const& file, pickle::TensorRef const& tensor,
                   StorageRecord const& record) {
  std::string const& key = tensor.storage.key;
  Index const volume = volume_of(file, tensor);
  auto const unit = static_cast<Index>(element_bytes(tensor.dtype));
  Index bytes = 0;
  if (__builtin_mul_overflow(volume, unit, &bytes))
    damaged(file, key, "a tensor has {} elements of {} bytes, more than 2^63 bytes.", volume, unit);
  if (volume == 0) return;
  auto const elements = static_cast<Index>(record.size_bytes / static_cast<std::uint64_t>(unit));
  Index last = tensor.offset;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    Index step = 0;
    if (__builtin_mul_overflow(tensor.shape[d] - 1, tensor.strides[d], &step) ||
        __builtin_add_overflow(last, step, &last))
      damaged(file, key,
              "the last element of a tensor of shape {} with strides {} has an index of 2^63 or "
              "more.",
              listed_sizes(tensor.shape), listed_sizes(tensor.strides));
  }
  if (last >= elements)
    damaged(
        file, key,
        "a tensor at element {} of shape {} with strides {} ends with element {}, the storage has {} elements of {}.",
        tensor.offset, listed_sizes(tensor.shape), listed_sizes(tensor.strides), last, elements,
        name(tensor.dtype));
}

FileTensor storage_tensor(StorageRecord const& record, pickle::TensorRef const& tensor,
                          std::string name) {
  Index const volume = checked_volume(tensor.shape, ErrorKind::source, "tensor shape");
  std::uint64_t const unit = element_bytes(tensor.dtype);
  FileTensor result;
  result.name = std::move(name);
  result.dtype = tensor.dtype;
  result.shape = tensor.shape;
  if (volume != 0 && !is_row_major(tensor)) result.strides = tensor.strides;
  // An empty tensor may name any place; it has no bytes, so it is at the start of its storage.
  result.offset_bytes =
      record.offset_bytes + (volume == 0 ? 0 : static_cast<std::uint64_t>(tensor.offset) * unit);
  result.size_bytes = static_cast<std::uint64_t>(volume) * unit;
  return result;
}

}  // namespace reshard
