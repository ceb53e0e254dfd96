#include "core/mapping/quant_finder.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace reshard {
namespace {

bool has_dtype(QuantPart const& part, FoundTensor const& found) {
  return std::ranges::find(part.dtypes, found.dtype) != part.dtypes.end();
}

/// The shape of a part of a stored matrix that is a weight of its own.
std::vector<Index> shape_of_matrix_part(std::vector<Index> shape, QuantPart const& part) {
  std::size_t const before = shape.size() - std::min(shape.size(), part.dims.size());
  std::vector<Index> result(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(before));
  for (std::size_t d = before; d < shape.size(); ++d) {
    PartDim const& dim = part.dims[d - before];
    auto const blocks = [&](Index size, Index block) { return (size + block - 1) / block; };
    switch (dim.kind) {
      case PartDim::Kind::all: break;
      case PartDim::Kind::one: result.push_back(1); break;
      case PartDim::Kind::words: result.push_back(blocks(shape[d] * dim.inner, dim.block)); break;
      case PartDim::Kind::blocks: result.push_back(blocks(shape[d], dim.block)); break;
      case PartDim::Kind::split:
        result.push_back(blocks(shape[d], dim.block));
        result.push_back(dim.block / dim.inner);
    }
  }
  if (part.vector > 0) result.push_back(part.vector);
  return result;
}

std::optional<QuantMatch> match_scheme(Side const& side, QuantScheme const& scheme,
                                       StoredName const& name, std::string const& weight,
                                       SidePlace const& place, FindTensor const& find,
                                       MatchFor what) {
  QuantMatch match;
  bool const transposed = is_stored_transposed(scheme);
  auto const has_shape = [&](QuantPart const& part, std::vector<Index> const& shape) {
    if (!transposed && side.part_shape(name, part, place) == shape) return true;
    if (what != MatchFor::values) return false;
    std::vector<Index> weight = side.quantised_layout(name.entry, place).layout.shape;
    if (!transposed) return shape_of_matrix_part(weight, part) == shape;
    QuantPart stored = part;
    std::swap(weight.end()[-1], weight.end()[-2]);
    std::swap(stored.dims.end()[-1], stored.dims.end()[-2]);
    return shape_of_matrix_part(weight, stored) == shape;
  };
  for (QuantPart const& part : scheme.parts) {
    std::string stored = part_name(side.weight_name(name.entry, weight, part), part.stored);
    auto const there = find(stored);
    bool const taken =
        scheme.beside && std::ranges::find(match.stored_parts, stored) != match.stored_parts.end();
    if (there && !taken && has_dtype(part, *there) && has_shape(part, there->shape))
      match.stored_parts.push_back(std::move(stored));
    else if (part.optional)
      match.stored_parts.emplace_back();
    else
      return std::nullopt;
  }
  return match;
}

/// Whether the codes and scales of a weight have the shapes of a scheme of blocks, whatever the
/// axes of the weight are.
bool in_blocks(Side const& side, QuantScheme const& scheme, StoredName const& name,
               FindTensor const& find) {
  std::vector<Index> weight;  // the last dimensions
  for (QuantPart const& part : scheme.parts) {
    if (part.optional || std::ranges::any_of(part.dims, [](PartDim const& dim) {
          return dim.kind != PartDim::Kind::blocks && dim.kind != PartDim::Kind::words;
        }))
      continue;
    auto const found = find(part_name(side.weight_name(name.entry, name.name, part), part.stored));
    if (!found || found->shape.size() < part.dims.size()) return false;
    std::size_t const first = found->shape.size() - part.dims.size();
    bool const codes = weight.empty();
    for (std::size_t d = 0; d < part.dims.size(); ++d) {
      Index const size = found->shape[first + d];
      Index const block = part.dims[d].block;
      Index const words = part.dims[d].kind == PartDim::Kind::words ? part.dims[d].inner : 1;
      if (codes)
        weight.push_back(size / words * block);
      else if (size != (weight[d] + block - 1) / block * words)
        return false;
    }
  }
  return !weight.empty();
}

bool has_words(QuantScheme const& scheme) {
  return std::ranges::any_of(scheme.parts, [](QuantPart const& part) {
    return std::ranges::count(part.dims, PartDim::Kind::words, &PartDim::kind) > 0;
  });
}

std::vector<std::string> names_of(StoredName const& name) {
  std::vector<std::string> names{name.name};
  names.insert(names.end(), name.aliases.begin(), name.aliases.end());
  return names;
}

void set_member(std::vector<bool>& members, Index at) {
  auto const i = static_cast<std::size_t>(std::max<Index>(at, 0));
  if (members.size() <= i) members.resize(i + 1, false);
  members[i] = true;
}

}  // namespace

std::optional<QuantMatch> match_quantised(Model const& model, Side const& side,
                                          StoredName const& name, SidePlace const& place,
                                          FindTensor const& find, MatchFor what) {
  if (!side.part(name.entry).empty() || side.quantised_expression(name.entry).dims.size() < 2)
    return std::nullopt;
  for (std::size_t s = 0; s < model.schemes().size(); ++s) {
    QuantScheme const& scheme = model.schemes()[s];
    if (scheme.beside || (scheme.only_values && what == MatchFor::moving)) continue;
    for (std::string const& weight : names_of(name))
      if (auto match = match_scheme(side, model.schemes()[s], name, weight, place, find, what)) {
        match->scheme = s;
        return match;
      }
  }
  return std::nullopt;
}

std::optional<QuantFault> quantised_fault(Model const& model, Side const& side,
                                          StoredName const& name, SidePlace const& place,
                                          FindTensor const& find) {
  if (!side.part(name.entry).empty() || side.quantised_expression(name.entry).dims.size() < 2)
    return std::nullopt;
  for (QuantScheme const& scheme : model.schemes()) {
    if (scheme.beside || scheme.only_values) continue;
    auto const is_there = [&](QuantPart const& part) {
      auto const there =
          find(part_name(side.weight_name(name.entry, name.name, part), part.stored));
      return part.optional || (there && std::ranges::count(part.dtypes, there->dtype) > 0);
    };
    if (!std::ranges::all_of(scheme.parts, is_there) || !in_blocks(side, scheme, name, find))
      continue;
    if (has_words(scheme) &&
        !match_scheme(side, scheme, name, name.name, place, find, MatchFor::values))
      continue;
    for (QuantPart const& part : scheme.parts)
      if (std::string fault = side.part_fault(name, part, place); !fault.empty())
        return QuantFault{std::move(fault), !scheme.decode.codes.empty()};
  }
  return std::nullopt;
}

std::vector<QuantMatch> match_beside(Model const& model, Side const& side, StoredName const& name,
                                     SidePlace const& place, FindTensor const& find,
                                     MatchFor what) {
  std::vector<QuantMatch> result;
  if (!side.part(name.entry).empty() || side.quantised_expression(name.entry).dims.size() < 2)
    return result;
  for (std::size_t s = 0; s < model.schemes().size(); ++s) {
    QuantScheme const& scheme = model.schemes()[s];
    if (!scheme.beside || (scheme.only_values && what == MatchFor::moving)) continue;
    for (std::string const& weight : names_of(name)) {
      auto match = match_scheme(side, scheme, name, weight, place, find, what);
      if (std::ranges::all_of(match->stored_parts, &std::string::empty)) continue;
      match->scheme = s;
      result.push_back(*std::move(match));
      break;
    }
  }
  return result;
}

std::optional<TensorId> find_fused_part(Model const& model, bool rows) {
  for (QuantScheme const& scheme : model.schemes())
    for (QuantPart const& part : scheme.parts) {
      if (!part.fused || (rows && part.dims.front().kind != PartDim::Kind::blocks)) continue;
      std::string const ending = part_tensor("", scheme, part);
      for (std::size_t t = 0; t < model.tensors().size(); ++t)
        if (model.exists(TensorId(t)) && model.tensors()[t].name.ends_with(ending))
          return TensorId(t);
    }
  return std::nullopt;
}

void QuantFinder::look(SidePlace const& place, std::span<StoredName const> names,
                       FindTensor const& find, std::string const& place_name) {
  for (StoredName const& name : names) {
    if (name.copy) continue;
    auto const match = match_quantised(model_, side_, name, place, find, MatchFor::moving);
    auto const there = [&](std::string const& stored) { return find(stored).has_value(); };
    if (!match && !there(name.name) &&
        std::none_of(name.aliases.begin(), name.aliases.end(), there))
      continue;
    for (TensorId const tensor : side_.tensors(name.entry)) note(tensor, name, match, place_name);
    for (QuantMatch const& beside :
         match_beside(model_, side_, name, place, find, MatchFor::moving))
      for (TensorId const tensor : side_.tensors(name.entry))
        note_parts(tensor, name, beside, layers_of(name, tensor));
  }
}

std::string QuantFinder::words(std::optional<std::size_t> scheme) const {
  return scheme ? "quantised (" + model_.schemes()[*scheme].name + ")" : "not quantised";
}

void QuantFinder::note(TensorId tensor, StoredName const& name,
                       std::optional<QuantMatch> const& match, std::string const& place_name) {
  std::vector<Index> const layers = layers_of(name, tensor);
  std::optional<std::size_t> const scheme = match ? std::optional(match->scheme) : std::nullopt;
  for (Index const layer : layers) {
    auto const [seen, is_new] = seen_.emplace(std::pair(tensor, layer), Seen{scheme, name.name});
    if (!is_new && seen->second.scheme != scheme)
      fail(
          ErrorKind::source,
          "{}: '{}' is {}, and '{}' of the same weight is {}. Parts of one layer's weight must be stored alike.",
          place_name, name.name, words(scheme), seen->second.name, words(seen->second.scheme));
  }
  if (match) note_parts(tensor, name, *match, layers);
}

std::vector<Index> QuantFinder::layers_of(StoredName const& name, TensorId tensor) const {
  std::vector<Index> layers = side_.layers_of(name, tensor);
  if (layers.empty()) layers.push_back(-1);
  return layers;
}

void QuantFinder::note_parts(TensorId tensor, StoredName const& name, QuantMatch const& match,
                             std::vector<Index> const& layers) {
  for (std::size_t p = 0; p < match.stored_parts.size(); ++p)
    if (!match.stored_parts[p].empty()) note_part({tensor, match.scheme, p}, name, layers);
}

void QuantFinder::note_part(PartKey const& key, StoredName const& name,
                            std::vector<Index> const& layers) {
  auto const [found, is_new] = parts_.try_emplace(key);
  if (is_new) {
    QuantScheme const& scheme = model_.schemes()[key.scheme];
    QuantPart const& part = scheme.parts[key.part];
    LogicalTensor const& weight = model_.tensor(key.tensor);
    LayoutExpr const& layout = side_.quantised_expression(name.entry);
    std::string const ending = "." + scheme.name + "." + part.name;
    auto const size_of = [this](std::string const& axis) {
      Json const value = model_.value(axis);
      return value.integer() != nullptr ? *value.integer() : 0;
    };
    LayoutExpr const part_expr =
        part_layout(layout, part.dims, vector_axis(part.vector), ending, size_of);
    found->second.axes = part_axes(weight, model_.axes(), layout, part_expr, weight.name + ending);
  }
  for (Index const layer : layers) set_member(found->second.layers, layer);
}

void QuantFinder::apply(Model& model) const {
  std::map<TensorId, std::vector<bool>> plain;
  for (auto const& [at, seen] : seen_) {
    std::vector<bool>& members = plain[at.first];
    if (!seen.scheme) set_member(members, at.second);
  }
  std::map<TensorId, bool> touched;
  for (auto const& [key, found] : parts_) {
    QuantScheme const& scheme = model.schemes()[key.scheme];
    std::string const name =
        part_tensor(model.tensor(key.tensor).name, scheme, scheme.parts[key.part]);
    model.add_part(key.tensor, name, found.axes, found.layers, !scheme.beside);
    if (!scheme.beside) touched[key.tensor] = true;
  }
  for (auto const& [tensor, ignored] : touched) model.limit(tensor, plain[tensor]);
}

}  // namespace reshard
