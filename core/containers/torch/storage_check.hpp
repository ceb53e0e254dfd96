#pragma once

#include <string>
#include <string_view>

#include "core/base/files/file_range.hpp"
#include "core/containers/file_tensor.hpp"
#include "core/containers/torch/torch_file.hpp"

/// Checks the storages and tensors of a pickle against their bytes. Contradictions are Errors of
/// kind source that name the file.
namespace reshard {

inline constexpr std::string_view damaged_storage_advice =
    "The file is damaged or hostile: fetch it again from its origin.";

/// Throws unless the record has the size of the storage, by its class and count.
void expect_right_size(FileRange const& file, pickle::StorageRef const& storage,
                       StorageRecord const& record);

/// Throws unless all elements of the tensor lie in the record and its size fits into 64 bits.
void expect_inside(FileRange const& file, pickle::TensorRef const& tensor,
                   StorageRecord const& record);

/// The tensor as a FileTensor. Pre: expect_inside() was called.
FileTensor storage_tensor(StorageRecord const& record, pickle::TensorRef const& tensor,
                          std::string name);

}  // namespace reshard
