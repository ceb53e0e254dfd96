#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/plan/views/gathered.hpp"
#include "core/plan/views/merged_weight.hpp"
#include "core/quant/dequantise.hpp"
#include "core/quant/encode/encode.hpp"

namespace reshard {

/// A tensor in a source file, contiguous and row-major.
struct StoredPlace {
  std::uint32_t file = 0;  ///< a real one, not a view
  std::uint64_t offset_bytes = 0;
  DType dtype = DType::u8;
  std::vector<Index> shape;
};

enum class ViewKind {
  cast,  ///< the same values in another dtype; a value that it cannot represent is an Error when it
         ///< is read
  add,   ///< value + constant, exactly; an Error when it is read if the dtype cannot represent it
  round,       ///< BF16 or F16 of F32, each value rounded to the nearest, of two the even one
  to_dtype,    ///< value + constant, rounded as quant::cast_values() says; a finite value that the
               ///< dtype has no place for is an Error when it is read. With further tensors the
               ///< value is their mean
  dequantise,  ///< BF16 of a quantised weight, each value rounded once
  merge,       ///< a weight and what an adapter adds to it, in F32, each value rounded once
  gather,      ///< a tensor from several places, which may be views
  encode,      ///< the codes of a gathered weight that is quantised
  scales,      ///< and its scales
  second,      ///< and the scale that it has in common with others, F32
  sizes,       ///< and the numbers of its rows and columns, I64
  rows,        ///< rows that are alike: zeros, or with `gathered` the mean of its rows, summed in
               ///< F64 in their order and rounded once
};

/// A tensor of no file: it is computed from a stored tensor while that is read. All code after the
/// reader treats it as a separate file (Catalog::add_view), whose bytes are the computed tensor in
/// row-major order.
struct SourceView {
  ViewKind kind = ViewKind::cast;
  std::string name;           ///< of the stored tensor, for messages
  StoredPlace stored;         ///< of dequantise: the codes, with any shape that has their bytes
  DType dtype = DType::bf16;  ///< of the computed tensor
  std::vector<Index> shape;   ///< of the computed tensor; its last two dimensions are the matrix
                              ///< that blocks count in, those before them a stack
  int constant = 0;           ///< of add and to_dtype
  /// Of to_dtype: tensors with the elements of `stored` that are summed with it in F32, in this
  /// order, and the sum divided by their number.
  std::vector<StoredPlace> averaged = {};
  std::shared_ptr<MergedWeight const> merged = nullptr;  ///< of merge
  std::shared_ptr<GatheredTensor const> gathered =
      nullptr;                    ///< of gather, encode, scales, second, sizes, rows
  quant::Encoding encoding = {};  ///< of encode, scales, second
  /// Of these, with a second scale: all weights that share it.
  std::shared_ptr<std::vector<std::shared_ptr<GatheredTensor const>> const> joined = nullptr;
  // The rest is of dequantise.
  quant::Scheme scheme = {};
  /// One number for each block: [.., rows / block_rows, columns / block_columns], rounded up;
  /// dimensions of 1 may be left out or put in. One number if the complete matrix shares a scale.
  std::optional<StoredPlace> scale = std::nullopt;
  std::optional<StoredPlace> second =
      std::nullopt;  ///< one number, or one for each matrix of the stack
  std::optional<StoredPlace> zero_points =
      std::nullopt;  ///< as in quant::Companions: I8 in the shape of the scale, or I32 [.., words
                     ///< of the rows, blocks]
  std::optional<StoredPlace> groups = std::nullopt;   ///< as in quant::Companions
  std::optional<StoredPlace> factors = std::nullopt;  ///< likewise
};

/// Whether the reader computes the view on the host even if a device computes others.
bool only_on_host(SourceView const& view);

/// Stored tensors of a dequantising view.
std::vector<StoredPlace> places_of(SourceView const& view);

/// Elements of the computed tensor.
Index elements_of(SourceView const& view);

/// The files that a view is computed from, each once.
std::vector<std::uint32_t> files_of(SourceView const& view);

/// The decoder of a dequantising view. Matrices of a stack that share one scale are one tall matrix
/// to it.
quant::Dequantiser dequantiser_of(SourceView const& view);

/// Checks that the view can be computed: dtypes, and the sizes of the stored tensors. An Error of
/// kind source names the tensors that disagree; `file` is the path of view.stored.
void check_view(SourceView const& view, std::string const& file);

/// Throws the Error of a converting view for a value that its dtype cannot represent; `file` is the
/// path of view.stored.
[[noreturn]] void fail_inexact(SourceView const& view, std::string const& file, Index element,
                               double value);

}  // namespace reshard
