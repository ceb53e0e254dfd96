#include "core/plan/views/source_view.hpp"

#include <algorithm>
#include <iterator>
#include <set>

#include "core/base/text/shape_text.hpp"
#include "core/quant/cast.hpp"
#include "core/quant/convert.hpp"
#include "core/quant/low_rank.hpp"

namespace reshard {
namespace {

Index volume(std::vector<Index> const& shape) {
  return checked_volume(shape, ErrorKind::source, "a tensor's shape");
}

quant::MatrixShape matrix_of(std::vector<Index> const& shape) {
  std::size_t const n = shape.size();
  quant::MatrixShape matrix{.stack = 1, .rows = 1, .columns = 1};
  if (n >= 1) matrix.columns = shape[n - 1];
  if (n >= 2) matrix.rows = shape[n - 2];
  for (std::size_t d = 0; d + 2 < n; ++d) matrix.stack *= shape[d];
  return matrix;
}

quant::Companions companions_of(SourceView const& view) {
  quant::Companions companions;
  companions.scale = view.scale->dtype;
  if (view.second) {
    companions.second = view.second->dtype;
    companions.seconds = volume(view.second->shape);
  }
  if (view.zero_points) companions.zero_points = view.zero_points->dtype;
  companions.groups = view.groups.has_value();
  if (view.factors) companions.factors = view.factors->dtype;
  return companions;
}

bool shares_one_scale(SourceView const& view) {
  return view.scheme.block_rows == 0 && view.scheme.block_columns == 0 &&
         volume(view.scale->shape) == 1;
}

std::vector<Index> without_ones(std::vector<Index> const& shape) {
  std::vector<Index> kept;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(kept),
               [](Index extent) { return extent != 1; });
  return kept;
}

[[noreturn]] void fail_shape(SourceView const& view, std::string const& file, std::string_view what,
                             StoredPlace const& place, std::string const& wanted) {
  fail(ErrorKind::source,
       "{}: '{}': its {} {} {}; a weight of {} in blocks of {} x {} needs {}. Correct the "
       "scheme, or compare the files with the original.",
       file, view.name, what, name(place.dtype), shape_text(place.shape), shape_text(view.shape),
       view.scheme.block_rows, view.scheme.block_columns, wanted);
}

/// Codes may have any dimensions, as long as some of the first ones are the rows of the computed
/// tensor: a transposed tensor has the same bytes.
void check_codes(SourceView const& view, std::string const& file,
                 quant::Dequantiser const& decoder) {
  Index const rows = decoder.code_rows();
  Index prefix = 1;
  bool found = rows == 1;
  for (Index const extent : view.stored.shape) found = (prefix *= extent) == rows || found;
  if (found && volume(view.stored.shape) * bits(view.stored.dtype) / 8 == decoder.code_bytes())
    return;
  fail_shape(view, file, "codes are", view.stored,
             fmt::format("{} rows of {} bytes", rows, decoder.row_bytes()));
}

/// The tensor has one element for each block: the leading dimensions of the computed tensor, then
/// rows and columns of blocks.
void check_grid(SourceView const& view, std::string const& file, std::string_view what,
                StoredPlace const& place, Index rows, Index columns) {
  std::vector<Index> grid(
      view.shape.begin(),
      view.shape.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(view.shape.size(), 2)));
  grid.push_back(rows);
  grid.push_back(columns);
  if (without_ones(place.shape) != without_ones(grid))
    fail_shape(view, file, what, place, shape_text(grid));
}

void check_dequantise(SourceView const& view, std::string const& file) {
  if (!view.scale)
    fail(ErrorKind::source, "{}: '{}' cannot be dequantised: it has no scale.", file, view.name);
  if (view.dtype != DType::bf16)
    fail(ErrorKind::usage, "{}: '{}' cannot be dequantised to {}: only BF16 is supported.", file,
         view.name, name(view.dtype));
  if ((view.scheme.second != quant::SecondScale::none) != view.second.has_value())
    fail(ErrorKind::source, "{}: '{}' {} a second scale, which its scheme {}.", file, view.name,
         view.second ? "has" : "lacks", view.second ? "does not know" : "needs");
  if (auto const problem = quant::problem_of(view.scheme, companions_of(view)))
    fail(ErrorKind::source, "{}: '{}' cannot be dequantised: {}.", file, view.name, *problem);
  Index const stack = matrix_of(view.shape).stack;
  if (view.second && volume(view.second->shape) != 1 && volume(view.second->shape) != stack)
    fail_shape(view, file, "second scale is", *view.second, fmt::format("1 number or {}", stack));
  quant::Dequantiser const decoder = dequantiser_of(view);
  check_codes(view, file, decoder);
  if (!shares_one_scale(view))
    check_grid(view, file, "scale is", *view.scale, decoder.scale_rows(), decoder.scale_columns());
  if (view.zero_points)
    check_grid(view, file, "zero points are", *view.zero_points, decoder.zero_rows(),
               decoder.zero_columns());
  bool const by_rows = quant::is_transposed(view.scheme.order);
  Index const grouped = by_rows ? decoder.shape().rows : decoder.shape().columns;
  if (view.groups && (view.groups->dtype != DType::i32 || volume(view.groups->shape) != grouped))
    fail_shape(view, file, "groups are", *view.groups, fmt::format("I32 [{}]", grouped));
  if (view.factors && volume(view.factors->shape) != decoder.shape().columns)
    fail_shape(view, file, "factors are", *view.factors,
               fmt::format("[{}]", decoder.shape().columns));
}

void check_merge(SourceView const& view, std::string const& file) {
  RESHARD_EXPECT(view.merged && view.merged->pairs && view.stored.shape == view.shape);
  if (!quant::mergeable(view.stored.dtype) || view.dtype != view.stored.dtype)
    fail(
        ErrorKind::source,
        "{}: '{}' is {}: an adapter is merged into weights of F32, BF16 or F16 only. Merge it into "
        "the checkpoint that this one was made from.",
        file, view.name, name(view.stored.dtype));
}

std::string_view largest_of(DType dtype) {
  return dtype == DType::f16 ? "65504" : dtype == DType::bf16 ? "3.39e38" : "3.4028e38";
}

}  // namespace

Index elements_of(SourceView const& view) { return volume(view.shape); }

bool only_on_host(SourceView const& view) {
  if (view.kind == ViewKind::dequantise && view.scale)
    return quant::is_by_columns(view.scheme, companions_of(view));
  return view.kind >= ViewKind::merge || view.kind == ViewKind::to_dtype;
}

std::vector<StoredPlace> places_of(SourceView const& view) {
  std::vector<StoredPlace> places{view.stored};
  for (auto const* const place :
       {&view.scale, &view.second, &view.zero_points, &view.groups, &view.factors})
    if (*place) places.push_back(**place);
  return places;
}

std::vector<std::uint32_t> files_of(SourceView const& view) {
  std::set<std::uint32_t> files{view.stored.file};
  for (StoredPlace const& place : places_of(view)) files.insert(place.file);
  if (view.gathered) return view.gathered->files;
  if (view.merged) files.insert(view.merged->files.begin(), view.merged->files.end());
  for (StoredPlace const& other : view.averaged) files.insert(other.file);
  return {files.begin(), files.end()};
}

quant::Dequantiser dequantiser_of(SourceView const& view) {
  quant::MatrixShape matrix = matrix_of(view.shape);
  quant::Companions const companions = companions_of(view);
  if (shares_one_scale(view))
    matrix = {.stack = 1, .rows = matrix.stack * matrix.rows, .columns = matrix.columns};
  return {view.scheme, matrix, companions};
}

void check_view(SourceView const& view, std::string const& file) {
  if (view.kind == ViewKind::dequantise) return check_dequantise(view, file);
  if (view.kind == ViewKind::merge) return check_merge(view, file);
  if (view.gathered || view.kind == ViewKind::rows) return;
  bool const rounds = view.kind == ViewKind::round;
  RESHARD_EXPECT(!rounds || (view.stored.dtype == DType::f32 && bits(view.dtype) == 16));
  RESHARD_EXPECT(view.kind != ViewKind::to_dtype || quant::castable(view.stored.dtype, view.dtype));
  for (StoredPlace const& other : view.averaged)
    RESHARD_EXPECT(view.kind == ViewKind::to_dtype && quant::castable(other.dtype, DType::f32) &&
                   other.shape == view.stored.shape);
  if (!quant::convertible(view.stored.dtype, view.dtype))
    fail(ErrorKind::source,
         "{}: '{}' is {} and is requested as {}: only floating-point tensors can be converted, to "
         "F64, F32, BF16 or F16.",
         file, view.name, name(view.stored.dtype), name(view.dtype));
  if (view.stored.shape != view.shape)
    fail(ErrorKind::internal, "{}: '{}' of {} as {}: a conversion keeps the shape.", file,
         view.name, shape_text(view.stored.shape), shape_text(view.shape));
}

void fail_inexact(SourceView const& view, std::string const& file, Index element, double value) {
  if (view.kind == ViewKind::rows)
    fail(ErrorKind::source,
         "{}: '{}': the mean of column {} of its rows is {}, and the largest number of {} is {}. "
         "Choose another target.dtype, or target.new_rows = \"zero\".",
         file, view.name, element, value, name(view.dtype), largest_of(view.dtype));
  if (view.gathered)
    fail(ErrorKind::source,
         "{}: '{}': element {} is {}, and no scale is for that. Name the module with "
         "target.quant_ignore, or write the weights without target.quant and look at them with "
         "reshard suspects.",
         file, view.name, element, value);
  if (view.kind == ViewKind::to_dtype)
    fail(ErrorKind::source,
         "{}: '{}': element {} is {}, and the largest number of {} is {}. Choose another "
         "target.dtype{}.",
         file, view.name, element, value, name(view.dtype), largest_of(view.dtype),
         view.dtype == DType::f16 ? ", such as \"bf16\"" : "");
  if (view.kind == ViewKind::cast)
    fail(ErrorKind::source,
         "{}: '{}': element {} is {}, which {} cannot hold. Keep the tensor in {}.", file,
         view.name, element, value, name(view.dtype), name(view.stored.dtype));
  fail(ErrorKind::source,
       "{}: '{}': element {} is {}, and {} + ({}) cannot be stored in {}. Save this tensor in "
       "F32, or choose a target that stores norms like the source.",
       file, view.name, element, value, value, view.constant, name(view.dtype));
}

}  // namespace reshard
