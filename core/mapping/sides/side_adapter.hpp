#pragma once

#include <string>
#include <vector>

#include "core/mapping/sides/side_entry.hpp"

namespace reshard {

/// Surroundings of the entries that are made. All outlive the call.
struct AdapterSide {
  MapFile const& map;
  Model const& model;
  SideOptions const& options;
  ExpressionScope const& conditions;
};

/// The entry of a weight.
struct AdaptedEntry {
  std::size_t group = 0;
  MapEntry const& written;
  std::string const& name;
  LayoutExpr const& expr;
  bool apart = false;  ///< its alternatives are stored tensors of their own
};

/// Whether an entry is the one of its choices that stores the adapters of its weights: the first
/// whose weights the base model has. They are added to `taken`.
bool takes_adapters(Model const& model, LayoutExpr const& expr, std::vector<std::string>& taken);

/// The entries of the matrices that adapters of an entry's weights have on this side, as far as the
/// model has them. Their axes are not worked out yet.
std::vector<SideEntry> adapter_entries(AdapterSide const& side, AdaptedEntry const& entry);

}  // namespace reshard
