#pragma once

#include <string>
#include <vector>

#include "core/mapping/sides/side.hpp"
#include "core/mapping/sides/side_part.hpp"

namespace reshard {

/// An axis that a stored name counts.
struct NameAxis {
  AxisId axis = 0;
  bool of_tensor = true;  ///< false: only the name counts it (a further copy)
  std::optional<AxisPart>
      part;  ///< the shape holds the rest of the axis; nothing: the name counts all of it

  /// The index of the axis that a position stands for; of a part, the first one.
  Index index(Index position) const { return part ? position * part->div : position; }
};

/// A map entry, compiled for a model.
struct SideEntry {
  MapEntry const* written = nullptr;
  NameTemplate name;
  std::vector<NameTemplate> aliases;
  LayoutExpr expr;
  LayoutExpr quantised;  ///< layout of the weight that its parts are made from
  LayoutExpr whole;      ///< the same of all that is fused with it, where the entry stores a piece
  std::string ending;    ///< of the name of a piece: "_w" (MapEntry::apart_as)
  std::optional<LayoutExpr> view;
  std::vector<TensorId> tensors;
  std::vector<NameAxis> name_axes;    ///< tensor axes not in the shape (in the name or in front),
                                      ///< outermost first, then further axes of the name
  std::vector<AxisId> shape_axes;     ///< axes whose digits are in the shape
  std::vector<std::size_t> cut_by;    ///< axes of the mesh that cut axes of the shape, by number
  std::vector<std::size_t> named_by;  ///< axes of the mesh that cut axes of the name
  std::optional<DType> cast;
  std::size_t group = 0;  ///< index of the MapName: entries of a group are choices
  std::string part;       ///< of a quantised weight: "fp8_block.scale"; of an adapter: "lora_a.r8"
  bool adapter = false;   ///< a matrix of an adapter
  std::vector<LayoutExpr> shared;    ///< further meanings of the same bytes: other weights with the
                                     ///< same matrix
  std::optional<AxisRule> row_rule;  ///< cuts an axis of this entry alone
  std::string fault;  ///< why a part cannot be stored here, for the moment when it is needed
};

/// The macros of a map with their choices' texts parsed.
struct CompiledMacro {
  std::vector<NameTemplate> texts;  ///< one per choice
};

std::vector<CompiledMacro> compile_macros(MapFile const& map);

/// Every entry whose tensors the model can have. Mistakes of expressions are Errors of kind usage
/// with the map's place.
std::vector<SideEntry> compile_entries(MapFile const& map, Model const& model,
                                       std::vector<CompiledMacro> const& macros,
                                       SideOptions const& options,
                                       ExpressionScope const& conditions);

/// The number of a place among those that differ along some axes of a mesh, row-major; 0 for a
/// place without coordinates.
Index number_along(Mesh const& mesh, std::vector<std::size_t> const& axes, MeshPlace const& at);

/// The expression once for each of its outermost alternatives, with that one alone.
std::vector<LayoutExpr> split_apart(LayoutExpr const& expr);

/// Whether a digit of this axis is in the factor.
bool holds_axis(LayoutExpr::Factor const& factor, std::string_view axis);

}  // namespace reshard
