#include "core/mapping/quant.hpp"

#include "core/mapping/model.hpp"

namespace reshard {
namespace {

Index positive(Expression const& expression, ExpressionScope const& scope, MapQuant const& quant) {
  Index const value = expression.empty() ? 1 : expression.integer(scope);
  if (value <= 0)
    fail(ErrorKind::usage, "{}: a block of '{}' is {} = {}; it must be above zero.", quant.place,
         quant.name, expression.text(), value);
  return value;
}

}  // namespace

std::vector<QuantScheme> evaluate_schemes(MapFile const& map, Model const& model) {
  ExpressionScope scope;
  scope.key = [&model](std::string_view key) { return std::optional<Json>(model.value(key)); };
  scope.absent_spreads = true;
  std::vector<QuantScheme> result;
  std::size_t first = 0;
  for (MapQuant const& quant : map.quant) {
    if (!quant.when.empty() && !quant.when.holds(scope)) continue;
    QuantScheme scheme{
        quant.name, quant.decode, quant.label, {}, quant.parts.front().name != "values"};
    auto const evaluated = [&](std::vector<MapPartDim> const& written) {
      std::vector<PartDim> dims;
      for (MapPartDim const& dim : written)
        dims.push_back(
            {dim.kind, positive(dim.block, scope, quant), positive(dim.inner, scope, quant)});
      return dims;
    };
    for (MapQuantPart const& written : quant.parts) {
      QuantPart part{written.name,
                     written.stored,
                     {},
                     evaluated(written.dims),
                     evaluated(written.global_dims.empty() ? written.dims : written.global_dims),
                     written.vector,
                     written.optional || scheme.beside,
                     written.fused};
      for (std::string const& dtype : written.dtypes)
        part.dtypes.push_back(*dtype_from_name(dtype));
      scheme.parts.push_back(std::move(part));
    }
    bool const before = !quant.first.empty() && quant.first.holds(scope);
    result.insert(before ? result.begin() + static_cast<std::ptrdiff_t>(first++) : result.end(),
                  std::move(scheme));
  }
  return result;
}

std::string part_name(std::string_view weight, std::string_view part) {
  constexpr std::string_view word = "weight";
  std::size_t const at = weight.rfind(word);
  std::size_t const last = weight.rfind('.');
  // "weight" of an earlier word of the name is another thing, unless an ending of its own follows:
  // "in_proj.weight.z".
  bool const found = at != std::string_view::npos &&
                     (last == std::string_view::npos || at > last || last == at + word.size());
  if (found)
    return std::string(weight.substr(0, at)) + std::string(part) +
           std::string(weight.substr(at + word.size()));
  if (part.starts_with(word)) return std::string(weight) + std::string(part.substr(word.size()));
  return std::string(weight) + "_" + std::string(part);
}

std::string part_tensor(std::string_view weight, QuantScheme const& scheme, QuantPart const& part) {
  return fmt::format("{}.{}.{}", weight, scheme.name, part.name);
}

std::string vector_axis(Index count) {
  return count > 0 ? fmt::format("numbers{}", count) : std::string();
}

}  // namespace reshard
