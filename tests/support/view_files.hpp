#pragma once

#include <vector>

#include "core/plan/views/source_view.hpp"
#include "tests/support/slow_quant.hpp"

namespace reshard {

/// A file that is being put together: tensors one behind the other at odd places.
struct Contents {
  std::vector<std::byte> bytes;

  StoredPlace add(DType dtype, std::vector<Index> shape, std::vector<std::byte> const& tensor) {
    bytes.resize(bytes.size() + 1 + bytes.size() % 3, std::byte{0xa5});
    StoredPlace const place{
        .file = 0, .offset_bytes = bytes.size(), .dtype = dtype, .shape = std::move(shape)};
    bytes.insert(bytes.end(), tensor.begin(), tensor.end());
    return place;
  }
};

inline SourceView view_of(SlowWeight const& weight, Contents& contents) {
  SourceView view{.kind = ViewKind::dequantise,
                  .name = "weight",
                  .stored = {},
                  .dtype = DType::bf16,
                  .shape = {weight.shape.stack, weight.shape.rows, weight.shape.columns}};
  view.scheme = weight.scheme;
  quant::Dequantiser const decoder(weight.scheme, weight.shape, weight.companions);
  Index const stack = weight.shape.stack;
  view.stored = contents.add(DType::u8, {decoder.code_rows(), decoder.row_bytes()}, weight.codes);
  view.scale = contents.add(weight.companions.scale,
                            {stack, decoder.scale_rows(), decoder.scale_columns()}, weight.scales);
  if (weight.scheme.second != quant::SecondScale::none)
    view.second =
        contents.add(weight.companions.second, {weight.companions.seconds}, weight.seconds);
  if (auto const zeros = weight.companions.zero_points)
    view.zero_points = contents.add(*zeros, {stack, decoder.zero_rows(), decoder.zero_columns()},
                                    weight.zero_points);
  if (weight.companions.groups)
    view.groups =
        contents.add(DType::i32, {static_cast<Index>(weight.groups.size() / 4)}, weight.groups);
  if (auto const factors = weight.companions.factors)
    view.factors = contents.add(*factors, {weight.shape.columns}, weight.factors);
  check_view(view, "test");
  return view;
}

}  // namespace reshard
