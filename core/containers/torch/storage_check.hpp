#pragma once

#include <string>
#include <string_view>

#include "core/base/file_range.hpp"
#include "core/containers/file_tensor.hpp"
#include "core/containers/torch/torch_file.hpp"

/// What a pickle says about storages and tensors against where their bytes are. Contradictions are
/// Errors of kind source that name the file.
namespace reshard {

inline constexpr std::string_view damaged_storage_advice =
    "The file is damaged or hostile: fetch it again from its origin.";

/// The record has as many bytes as the storage's class and count say.
void expect_right_size(FileRange const& file, pickle::StorageRef const& storage,
                       StorageRecord const& record);

/// All elements of the tensor lie in the record; its size fits into 64 bits.
void expect_inside(FileRange const& file, pickle::TensorRef const& tensor,
                   StorageRecord const& record);

/// The tensor's place. Pre: expect_inside.
FileTensor storage_tensor(StorageRecord const& record, pickle::TensorRef const& tensor,
                          std::string name);

}  // namespace reshard
