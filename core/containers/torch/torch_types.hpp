#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/containers/torch/pickle/pickle.hpp"

namespace reshard::pickle {

/// torch's names of an element type.
struct TorchType {
  DType dtype;
  std::string_view name;           ///< "bfloat16": the attribute of module torch
  std::string_view storage_class;  ///< "BFloat16Storage"; empty if torch writes such tensors over
                                   ///< an UntypedStorage
};

/// nullptr when torch has no such type with one element in each `bits / 8` bytes.
TorchType const* torch_type(DType dtype);
std::optional<DType> dtype_from_torch_name(std::string_view name);
std::optional<DType> dtype_from_storage_class(std::string_view name);

/// The strides, in elements, of a contiguous tensor of torch: a dimension of size 0 counts as one
/// of size 1.
std::vector<Index> row_major_strides(std::span<Index const> shape);

/// A storage of exactly `elements` elements on the CPU, with the decimal key `number`. Pre:
/// torch_type(dtype) is not null.
StorageRef own_storage(DType dtype, Index elements, std::size_t number);

/// An OrderedDict of key, value, key, value, …: the type of a module's state dict.
NodeId add_ordered_dict(Document& document, std::vector<NodeId> pairs);

}  // namespace reshard::pickle
