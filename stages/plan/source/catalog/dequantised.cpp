#include "stages/plan/source/catalog/dequantised.hpp"

#include <numeric>

#include "core/base/error.hpp"

namespace reshard {
namespace {

Index block_of(PartDim const& dim) {
  bool const whole = dim.kind == PartDim::Kind::split && dim.inner == dim.block;
  return whole || dim.kind == PartDim::Kind::blocks ? dim.block : 0;
}

/// Bits of the integers of a part: a block of them is some 32-bit words.
int integer_bits(QuantPart const& part) {
  for (PartDim const& dim : part.dims)
    if (dim.block > 1)
      return static_cast<int>(32 * (dim.kind == PartDim::Kind::words ? dim.inner : 1) / dim.block);
  return 0;
}

Index elements(std::vector<Index> const& shape) {
  return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>());
}

/// Sets what a code is: "e4m3", "e2m1", "i8", "i4", "int4" for integers of 4 bits in 32-bit words,
/// or "int" for as many bits as a block of the words has.
void set_codes(quant::Scheme& codes, QuantScheme const& scheme, DType dtype,
               std::string const& name) {
  constexpr std::string_view packed = "int";
  std::string const& word = scheme.decode.codes;
  if (word == "e4m3") {
    codes.codes = dtype == DType::f8_e5m2 ? quant::CodeFormat::e5m2 : quant::CodeFormat::e4m3;
  } else if (word == "e2m1") {
    codes.codes = quant::CodeFormat::e2m1;
  } else if (word == "i8") {
    codes.codes = quant::CodeFormat::i8;
  } else if (word == "i4") {
    codes.codes = quant::CodeFormat::i4;
  } else if (word == packed) {
    codes.codes = quant::CodeFormat::integer;
    codes.integer_bits = integer_bits(scheme.parts.front());
  } else if (word.size() == packed.size() + 1 && word.starts_with(packed)) {
    codes.codes = quant::CodeFormat::integer;
    codes.integer_bits = word.back() - '0';
  } else {
    fail(ErrorKind::usage,
         "'{}': values of the scheme {} cannot be computed. Set model.quant = \"keep\".", name,
         scheme.name);
  }
}

quant::CodeOrder order_of(std::string const& word) {
  if (word == "interleaved") return quant::CodeOrder::interleaved;
  if (word == "rows") return quant::CodeOrder::rows;
  return word == "row_pairs" ? quant::CodeOrder::row_pairs : quant::CodeOrder::columns;
}

}  // namespace

SourceView dequantised(QuantScheme const& scheme, QuantMatch const& match, std::string const& name,
                       std::vector<Index> const& shape,
                       std::function<std::optional<StoredPlace>(std::string const&)> const& find) {
  SourceView view;
  view.kind = ViewKind::dequantise;
  view.name = name;
  view.shape = shape;
  bool const transposed = is_stored_transposed(scheme);
  if (transposed) std::swap(view.shape.end()[-1], view.shape.end()[-2]);
  view.scheme.order = order_of(scheme.decode.order);
  view.scheme.zero_offset = static_cast<int>(scheme.decode.zero_offset);
  view.scheme.divisor = static_cast<int>(scheme.decode.divisor);
  for (std::size_t p = 0; p < scheme.parts.size(); ++p) {
    QuantPart const& part = scheme.parts[p];
    auto const stored = match.stored_parts[p].empty() ? std::nullopt : find(match.stored_parts[p]);
    if (!stored) continue;
    StoredPlace const& place = *stored;
    if (p == 0) {
      view.stored = place;
      set_codes(view.scheme, scheme, place.dtype, name);
      continue;
    }
    if (part.name == "zero_point") view.zero_points = place;
    if (part.name == "groups") view.groups = place;
    if (part.name == "pre_quant_scale") view.factors = place;
    bool const second = part.name == scheme.decode.times || part.name == scheme.decode.divided_by;
    if (!second && part.name != "scale") continue;
    bool const single =
        part.dims.size() == 2 && block_of(part.dims[0]) == 0 && block_of(part.dims[1]) == 0;
    if (single && shape.size() == 2 && elements(place.shape) > 1)
      fail(
          ErrorKind::usage,
          "'{}' holds several weights with a scale each ({}). Dequantise from a layout that keeps them apart (Hugging Face).",
          name, match.stored_parts[p]);
    if (second) {
      view.second = place;
      view.scheme.second = part.name == scheme.decode.times ? quant::SecondScale::times
                                                            : quant::SecondScale::divided_by;
    } else {
      view.scale = place;
      std::size_t const rows = part.dims.size() - (transposed ? 1 : 2);
      view.scheme.block_rows = block_of(part.dims[rows]);
      view.scheme.block_columns = block_of(part.dims[transposed ? rows - 1 : rows + 1]);
    }
  }
  return view;
}

}  // namespace reshard
