#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/mapping/sides/side_entry.hpp"

namespace reshard {

/// Whether a side has the names of a model's family, not Megatron's.
bool has_family_names(SideOptions const& options);

/// A part's dimensions in terms of the weight's last ones, on this side.
std::vector<PartDim> const& dims_of(QuantPart const& part, SideOptions const& options);

/// The layouts of a part beside a weight with this layout: one, or one for each tensor of the
/// weight over the same bytes (shared_part_layouts()). `suffix` and `size_of`: part_layout().
/// Blocks that do not fit are an Error of kind usage.
std::vector<LayoutExpr> part_layouts(LayoutExpr const& weight, QuantPart const& part,
                                     SideOptions const& options, MapFile const& map,
                                     std::string const& suffix,
                                     std::function<Index(std::string const&)> const& size_of);

/// The layout of the weight that a part of an entry stands beside.
LayoutExpr const& weight_of_part(SideEntry const& entry, QuantPart const& part);

}  // namespace reshard
