#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/mapping/sides/side.hpp"

namespace reshard {

/// The value of an axis while a name is made.
struct SideVariable {
  enum class Use { none, asked, shown };

  AxisId axis = 0;
  Index value = 0;
  mutable Use use =
      Use::none;  ///< whether a condition asked for it, or a field shows it in the name
};

/// Meanings of words in the expressions of one side: variables, mesh sizes, options, then the
/// model's lets, axes and facts; the functions exists('tensor') and has('stored name').
class SideScope {
 public:
  /// All three outlive the scope.
  SideScope(Model const& model, MapFile const& map, SideOptions const& options);

  /// `variables` may be null; they outlive the result.
  ExpressionScope with(std::vector<SideVariable> const* variables) const;
  Json value(std::string_view name, std::vector<SideVariable> const* variables) const;

 private:
  Model const& model_;
  MapFile const& map_;
  SideOptions const& options_;
  std::set<std::string, std::less<>> mesh_words_;
};

}  // namespace reshard
