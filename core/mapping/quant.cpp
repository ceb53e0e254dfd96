#include "core/mapping/quant.hpp"

#include <algorithm>
#include <iterator>

#include "core/mapping/model.hpp"

namespace reshard {
namespace {

/// How config.json describes the weights of each group of modules; one null where it has no groups.
Json::Array weight_groups(Model const& model) {
  Json::Array groups;
  Json const described = model.value("quantization_config.config_groups");
  if (described.members() != nullptr)
    for (auto const& [name, group] : *described.members())
      if (Json const* weights = group.find("weights"); weights != nullptr)
        groups.push_back(*weights);
  if (groups.empty()) groups.emplace_back();
  return groups;
}

class SchemeMaker {
 public:
  SchemeMaker(MapQuant const& quant, MapFile const& map, Model const& model)
      : quant_(quant), model_(model) {
    scope_.absent_spreads = true;
    scope_.key = [this, &map](std::string_view key) {
      auto const let = std::ranges::find(map.let, key, &NamedExpression::name);
      if (let != map.let.end()) return std::optional<Json>(let->expression.evaluate(scope_));
      return std::optional<Json>(key.starts_with(of_group)
                                     ? fact(group_, key.substr(of_group.size()))
                                     : model_.value(key));
    };
  }

  bool is_meant() const { return quant_.when.empty() || quant_.when.holds(scope_); }
  /// Of the scheme that was made last.
  bool is_first() const { return !quant_.first.empty() && quant_.first.holds(scope_); }

  QuantScheme made(Json const& group) {
    group_ = group;
    QuantScheme scheme{
        quant_.name,       quant_.decode, quant_.label, {}, quant_.parts.front().name != "values",
        quant_.only_values};
    if (!quant_.zero_offset.empty()) scheme.decode.zero_offset = quant_.zero_offset.integer(scope_);
    for (MapQuantPart const& written : quant_.parts) {
      if (!written.when.empty() && !written.when.holds(scope_)) continue;
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
    return scheme;
  }

 private:
  static constexpr std::string_view of_group = "group.";

  Index positive(Expression const& expression) const {
    Index const value = expression.empty() ? 1 : expression.integer(scope_);
    if (value <= 0)
      fail(ErrorKind::usage, "{}: a block of '{}' is {} = {}; it must be above zero.", quant_.place,
           quant_.name, expression.text(), value);
    return value;
  }

  std::vector<PartDim> evaluated(std::vector<MapPartDim> const& written) const {
    std::vector<PartDim> dims;
    for (MapPartDim const& dim : written)
      dims.push_back({dim.kind, positive(dim.block), positive(dim.inner)});
    return dims;
  }

  MapQuant const& quant_;
  Model const& model_;
  Json group_;
  ExpressionScope scope_;
};

bool have_equal_parts(QuantScheme const& a, QuantScheme const& b) {
  return std::ranges::equal(a.parts, b.parts, [](QuantPart const& x, QuantPart const& y) {
    return x.name == y.name && x.dims == y.dims;
  });
}

/// "int4_packed_1x64", "int4_packed_1x64_zero": what a scale of it is for, and whether it has zero
/// points.
std::string name_with_block(QuantScheme const& scheme) {
  std::string name = scheme.name;
  for (QuantPart const& part : scheme.parts)
    if (part.name == "scale" && part.dims.size() == 2)
      name += fmt::format("_{}x{}", part.dims[0].block, part.dims[1].block);
  if (std::ranges::find(scheme.parts, "zero_point", &QuantPart::name) != scheme.parts.end())
    name += "_zero";
  return name;
}

}  // namespace

bool is_stored_transposed(QuantScheme const& scheme) {
  return scheme.decode.transposed || scheme.decode.order == "interleaved" ||
         scheme.decode.order == "rows";
}

std::vector<QuantScheme> evaluate_schemes(MapFile const& map, Model const& model) {
  Json::Array const groups = weight_groups(model);
  std::vector<QuantScheme> first;
  std::vector<QuantScheme> others;
  for (MapQuant const& quant : map.quant) {
    SchemeMaker maker(quant, map, model);
    if (!maker.is_meant()) continue;
    std::vector<QuantScheme> made;
    for (Json const& group : groups) {
      QuantScheme scheme = maker.made(group);
      if (std::ranges::any_of(
              made, [&](QuantScheme const& other) { return have_equal_parts(other, scheme); }))
        continue;
      made.push_back(scheme);
      if (made.size() > 1) scheme.name = name_with_block(scheme);
      (maker.is_first() ? first : others).push_back(std::move(scheme));
    }
  }
  first.insert(first.end(), std::make_move_iterator(others.begin()),
               std::make_move_iterator(others.end()));
  return first;
}

std::string part_name(std::string_view weight, std::string_view part) {
  constexpr std::string_view word = "weight";
  if (part.starts_with('_')) return std::string(weight) + std::string(part);
  if (part.starts_with('.'))
    return std::string(weight.substr(0, weight.rfind('.'))) + std::string(part);
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

}  // namespace reshard
