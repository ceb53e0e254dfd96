#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"

namespace reshard::test {

/// A tensor of a folder that a test makes; its bytes follow from its name.
struct SmallTensor {
  std::string name;
  DType dtype = DType::bf16;
  std::vector<std::uint64_t> shape;
};

/// Writes one safetensors file.
void write_safetensors(std::filesystem::path const& path, std::vector<SmallTensor> const& tensors);

/// A Llama of two layers as a Hugging Face folder; `tied` leaves lm_head out.
void make_llama_folder(std::filesystem::path const& folder, bool tied);

/// The same with FP8 weights in blocks of 128 x 128 and one scale each, as DeepSeek stores them.
void make_fp8_llama_folder(std::filesystem::path const& folder);

}  // namespace reshard::test
