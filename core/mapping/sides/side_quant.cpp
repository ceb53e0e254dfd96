#include "core/mapping/sides/side_quant.hpp"

#include "core/layout/adapter_layout.hpp"
#include "core/layout/part_layout.hpp"

namespace reshard {
namespace {

/// The weight with the rows of its first dimension of the matrix as ranks have them one after the
/// other.
LayoutExpr rank_by_rank(LayoutExpr weight, std::size_t matrix_dims, SideOptions const& options,
                        MapFile const& map,
                        std::function<Index(std::string const&)> const& size_of) {
  LayoutExpr::Factor& dim = weight.dims[weight.dims.size() - matrix_dims];
  if (dim.kind != LayoutExpr::Factor::Kind::alternatives || dim.alternatives.size() < 2)
    return weight;
  for (AxisRule const& rule : map.rules) {
    if (!holds_axis(dim, rule.axis)) continue;
    Index const ranks = options.mesh.size(rule.mesh);
    if (ranks <= 1) continue;
    Index const size = size_of(rule.axis);
    if (size % ranks == 0 && put_ranks_outside(dim, rule.axis, size, ranks)) return weight;
    fail(ErrorKind::usage,
         "'{}': with {} = {}, the rows of a part are in an order that parts of axis '{}' (size "
         "{}) cannot describe",
         weight.text, rule.mesh, ranks, rule.axis, size);
  }
  return weight;
}

}  // namespace

bool has_family_names(SideOptions const& options) { return !options.local && !options.in_front; }

std::vector<PartDim> const& dims_of(QuantPart const& part, SideOptions const& options) {
  return options.in_front ? part.global_dims : part.dims;
}

std::vector<LayoutExpr> part_layouts(LayoutExpr const& weight, QuantPart const& part,
                                     SideOptions const& options, MapFile const& map,
                                     std::string const& suffix,
                                     std::function<Index(std::string const&)> const& size_of) {
  std::vector<PartDim> const& dims = dims_of(part, options);
  std::string const vector = vector_axis(part.vector);
  if (!part.fused && !has_family_names(options))
    return {part_layout(weight, dims, vector, suffix, size_of)};
  bool const rows = !dims.empty() && weight.dims.size() >= dims.size() &&
                    dims.front().kind == PartDim::Kind::blocks;
  if (part.fused && options.in_front && rows)
    return shared_part_layouts(rank_by_rank(weight, dims.size(), options, map, size_of), dims,
                               vector, suffix, size_of);
  return shared_part_layouts(weight, dims, vector, suffix, size_of);
}

LayoutExpr const& weight_of_part(SideEntry const& entry, QuantPart const& part) {
  return part.fused ? entry.whole : entry.quantised;
}

}  // namespace reshard
