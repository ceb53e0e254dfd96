#include "stages/plan/source/dequantised.hpp"

#include <numeric>

#include "core/base/error.hpp"

namespace reshard {
namespace {

Index block_of(PartDim const& dim) {
  bool const whole = dim.kind == PartDim::Kind::split && dim.inner == dim.block;
  return whole || dim.kind == PartDim::Kind::blocks ? dim.block : 0;
}

Index elements(std::vector<Index> const& shape) {
  return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>());
}

/// Sets what a code is: "e4m3", "e2m1", "i8", or "int4" for integers of 4 bits in 32-bit words.
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
  } else if (word.size() == packed.size() + 1 && word.starts_with(packed)) {
    codes.codes = quant::CodeFormat::integer;
    codes.integer_bits = word.back() - '0';
  } else {
    fail(ErrorKind::usage,
         "'{}': values of the scheme {} cannot be computed. Set model.quant = \"keep\".", name,
         scheme.name);
  }
}

}  // namespace

SourceView dequantised(QuantScheme const& scheme, QuantMatch const& match, std::string const& name,
                       std::vector<Index> const& shape,
                       std::function<std::optional<StoredPlace>(std::string const&)> const& find) {
  SourceView view;
  view.kind = ViewKind::dequantise;
  view.name = name;
  view.shape = shape;
  for (std::size_t p = 0; p < scheme.parts.size(); ++p) {
    QuantPart const& part = scheme.parts[p];
    auto const stored = match.stored_parts[p].empty() ? std::nullopt : find(match.stored_parts[p]);
    if (!stored) continue;
    if (part.name == "pre_quant_scale")
      fail(ErrorKind::usage,
           "'{}' has a pre-quantisation scale, which applies to its input, so the weight cannot "
           "be dequantised. Set model.quant = \"keep\".",
           name);
    StoredPlace const& place = *stored;
    if (p == 0) {
      view.stored = place;
      set_codes(view.scheme, scheme, place.dtype, name);
      continue;
    }
    if (part.name == "zero_point") view.zero_points = place;
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
      view.scheme.block_rows = block_of(part.dims[0]);
      view.scheme.block_columns = block_of(part.dims[1]);
    }
  }
  return view;
}

}  // namespace reshard
