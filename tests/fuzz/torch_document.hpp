#pragma once

#include <string>
#include <string_view>

#include "core/containers/torch/torch_file.hpp"
#include "tests/fuzz/fuzz.hpp"

/// What the targets that end in a torch document check of it.
namespace reshard::fuzz {

/// Small limits: a fuzzer should find wrong turns, not large inputs.
inline constexpr pickle::Limits small_limits{
    .largest_nodes = 1 << 20, .largest_bytes = std::size_t{64} << 20, .deepest = 1000};

/// Writing may fail (there are cycles that no pickle can express), but what was written is read
/// again, and is written as the same bytes.
void expect_stable(pickle::Document const& document);

/// When the filter of carried calls lets the document pass, what we write of it calls nothing else
/// than an independent list allows.
void expect_harmless(pickle::Document const& document);

/// The tensors lie in the file, and the file that we write of the document is read as the same
/// document.
void expect_sound(TorchFile torch, std::uint64_t file_bytes);

}  // namespace reshard::fuzz
