#pragma once

#include <string>
#include <vector>

#include "core/plan/catalog.hpp"
#include "pipeline/verify/compare/compare_sides.hpp"

namespace reshard {

/// Why a tensor differs, or cannot be compared, before any byte of it is read.
enum class HeaderFault { missing, extra, shape, dtype, incomplete, not_comparable };
std::string_view name(HeaderFault fault);

struct HeaderDifference {
  HeaderFault fault = HeaderFault::missing;
  std::string tensor;
  std::string a;  ///< shape, dtype, stored name or what is lacking; "" where that side has nothing
  std::string b;
  std::uint64_t parts = 1;  ///< of the tensor (part_count()): what differs is counted by these
  bool is_state = false;    ///< of an optimizer
};

/// A tensor whose elements are compared.
struct ComparedTensor {
  std::uint32_t tensor = 0;  ///< of a's model
  DType dtype_a = DType::u8;
  DType dtype_b = DType::u8;
};

/// Both checkpoints in the numbering of a's model. What `tensors` does not name has no pieces there
/// and does not exist in the model.
struct MatchedSides {
  Catalog b;
  std::vector<ComparedTensor> tensors;
  std::vector<HeaderDifference> differences;
  std::vector<std::string> casts;  ///< tensors of other dtypes by a map's own cast, compared by
                                   ///< value: "router.expert_bias: BF16 in a, F32 in b"
  std::uint64_t states_only_a =
      0;  ///< optimizer tensors that one side has; they are no differences
  std::uint64_t states_only_b = 0;
  std::uint64_t left_out_a = 0;  ///< by ComparedPart
  std::uint64_t left_out_b = 0;
};

/// Which tensors are compared.
enum class ComparedPart {
  all,
  without_state,  ///< no optimizer state
  weights,        ///< neither optimizer state nor what quantisers keep beside weights
};

/// Finds the tensors that both sides have with the same axes. Where stored values mean different
/// ones (a norm without its one, another dtype when values are compared) views on both sides give
/// them a common dtype. Changes sides.a: its model and source catalogue are what is left.
MatchedSides match_sides(ComparedSides& sides, Comparison comparison, ComparedPart part);

/// "[32, 48]", or with the names of axes "layer 8 · hidden 32". `first_axis`: the number of the
/// first axis that is shown.
std::string shape_text(Model const& model, std::uint32_t tensor, std::size_t first_axis = 0);

}  // namespace reshard
