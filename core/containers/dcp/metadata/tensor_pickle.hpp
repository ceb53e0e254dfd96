#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/containers/torch/pickle/pickle.hpp"

/// The data.pkl of one plain tensor.
namespace reshard::dcp {

/// A tensor and the size of its pickle in bytes.
struct PickledTensor {
  pickle::TensorRef tensor;
  std::size_t size_bytes = 0;
};

/// Recognises the pickle that torch.save makes of a plain tensor or Parameter, with or without
/// memo. nullopt for all other bytes, valid or not.
std::optional<PickledTensor> match_tensor_pickle(std::string_view bytes);

/// The pickle of a row-major tensor in a storage of its own with key "0", without memo. An element
/// type that torch lacks is an Error of kind source.
std::string tensor_pickle(DType dtype, std::span<Index const> shape);

}  // namespace reshard::dcp
