#include "core/mapping/sides/side_adapter.hpp"

#include <algorithm>

#include "core/base/text/text.hpp"
#include "core/mapping/adapter.hpp"

namespace reshard {
namespace {

/// One weight's entry and one rank.
class AdapterMaker {
 public:
  AdapterMaker(AdapterSide const& side, AdaptedEntry const& entry, Index rank)
      : side_(side),
        entry_(entry),
        rank_(rank),
        form_(adapter_form(side.model.adapter_forms(), side.options.adapter)) {}

  std::vector<SideEntry> run() {
    std::vector<std::string> const weights = entry_.expr.tensors();
    if (weights.empty() || !entry_.written.view.empty() || !entry_.written.copy.empty() ||
        (entry_.written.as_it_is && !form_.family))
      return {};
    bool const apart = side_.options.adapters_apart && weights.size() > 1 &&
                       std::ranges::all_of(weights, [this](std::string const& weight) {
                         return !part_word(form_, weight).empty();
                       });
    if (!apart) {
      add(entry_.expr, weights, "");
      return std::move(result_);
    }
    for (std::string const& weight : weights)
      add(only_tensor(entry_.expr, weight), {weight}, part_word(form_, weight));
    return std::move(result_);
  }

 private:
  void add(LayoutExpr const& expr, std::vector<std::string> const& weights, std::string_view word) {
    auto const axes = adapted_axes(side_.model, weights.front(), rank_);
    if (!axes) return;
    auto const roles = linear_roles(expr, *axes);
    if (!roles) return;
    add(expr, *roles, AdapterMatrix::a, weights, word);
    add(expr, *roles, AdapterMatrix::b, weights, word);
  }

  void add(LayoutExpr const& expr, LinearRoles const& roles, AdapterMatrix matrix,
           std::vector<std::string> const& weights, std::string_view word) {
    SideEntry entry;
    for (std::string const& weight : weights) {
      auto const tensor = side_.model.find_tensor(adapter_tensor(weight, matrix, rank_));
      if (!tensor) return;
      entry.tensors.push_back(*tensor);
    }
    std::string const name = stored_name(roles, matrix, word);
    if (name.empty()) return;
    entry.written = &entry_.written;
    entry.group = entry_.group;
    entry.part = adapter_part(matrix, rank_);
    entry.adapter = true;
    AdapterShape shape{matrix, fmt::format("rank{}", rank_), "." + entry.part, {}, {}};
    if (packed(roles))
      shape.inside = roles.further;
    else
      shape.front = dropped_axes(expr, entry.tensors.front(), name);
    LayoutExpr weight = expr;
    AxisRule const* const rule = rule_in(weight.dims[roles.dims.out]);
    bool const b = matrix == AdapterMatrix::b;
    bool const split = entry_.apart && b && is_in(form_.apart, weights.front());
    if (b && side_.options.in_front && rule != nullptr)
      order_rows(weight.dims[roles.dims.out], *rule, weights.front(), word);
    cut_rows(entry, roles, matrix, rule);
    if (!split) {
      make(std::move(entry), adapter_layouts(weight, roles.dims, shape), name, "");
      return;
    }
    std::vector<LayoutExpr> const parts = split_apart(weight);
    for (std::size_t k = 0; k < parts.size() && k < entry_.written.apart_as.size(); ++k) {
      SideEntry part = entry;
      part.tensors.clear();
      for (std::string const& one : parts[k].tensors())
        part.tensors.push_back(*side_.model.find_tensor(adapter_tensor(one, matrix, rank_)));
      make(std::move(part), adapter_layouts(parts[k], roles.dims, shape), name,
           entry_.written.apart_as[k]);
    }
  }

  void make(SideEntry entry, std::vector<LayoutExpr> layouts, std::string const& name,
            std::string const& ending) {
    entry.name = NameTemplate::parse(name + ending, side_.map.macros, entry_.written.place);
    entry.expr = layouts.front();
    entry.quantised = entry.expr;
    entry.shared.assign(std::make_move_iterator(layouts.begin() + 1),
                        std::make_move_iterator(layouts.end()));
    result_.push_back(std::move(entry));
  }

  bool packed(LinearRoles const& roles) const { return form_.packed && !roles.further.empty(); }

  std::string stored_name(LinearRoles const& roles, AdapterMatrix matrix,
                          std::string_view word) const {
    std::string name = adapter_name(form_, entry_.name, matrix, word);
    if (!name.empty()) return roles.further.empty() ? name : std::string();
    return packed(roles) ? packed_adapter_name(form_, entry_.name, matrix, wrappers())
                         : std::string();
  }

  /// How many parameters of the module with adapters have their wrappers around this one's.
  std::size_t wrappers() const {
    auto const [module, word] = module_and_word(entry_.name);
    std::size_t count = 0;
    for (MapName const& other : side_.map.stored) {
      auto const [its_module, its_word] = module_and_word(other.name);
      if (its_module != module || its_word >= word) continue;
      bool const adapted = std::ranges::any_of(other.entries, [this](MapEntry const& written) {
        return std::ranges::any_of(parse_layout(written.is).tensors(),
                                   [this](std::string const& weight) {
                                     auto const ranks = side_.model.adapter_ranks();
                                     return std::ranges::any_of(ranks, [&](Index rank) {
                                       return adapted_axes(side_.model, weight, rank).has_value();
                                     });
                                   });
      });
      count += adapted ? 1 : 0;
    }
    return count;
  }

  /// Axes of the weight that its own name counts and the matrix' does not: they are in its shape
  /// where axes cannot be in front.
  std::vector<std::string> dropped_axes(LayoutExpr const& weight, TensorId tensor,
                                        std::string const& name) const {
    if (side_.options.in_front) return {};
    std::vector<std::string> result;
    for (LogicalAxis const& axis : side_.model.tensor(tensor).axes) {
      std::string const& word = side_.model.axes()[axis.axis].name;
      if (word != "expert" || std::ranges::any_of(weight.dims, [&](auto const& dim) {
            auto const in_shape = axes_in(dim);
            return std::ranges::find(in_shape, word) != in_shape.end();
          }))
        continue;
      bool const named = name.find("{rest}") != std::string::npos || counts(name, word) ||
                         counts_in_macro(name, word);
      if (!named) result.push_back(word);
    }
    return result;
  }

  bool counts(std::string_view text, std::string const& word) const {
    return text.find("{" + word + "}") != std::string_view::npos;
  }
  /// Whether a macro of the name counts the axis, in the choice that holds on this side.
  bool counts_in_macro(std::string_view name, std::string const& word) const {
    for (MapMacro const& macro : side_.map.macros) {
      if (name.find("{" + macro.name + "}") == std::string_view::npos) continue;
      for (MacroChoice const& choice : macro.choices) {
        if (!choice.in.empty()) continue;
        if (!choice.when.empty() && !choice.when.holds(side_.conditions)) continue;
        if (counts(choice.text, word)) return true;
        break;
      }
    }
    return false;
  }

  /// The rule that cuts an axis of a dimension of the weight, or nullptr.
  AxisRule const* rule_in(LayoutExpr::Factor const& dim) const {
    for (std::string const& axis : axes_in(dim)) {
      auto const& whole = entry_.written.whole;
      if (std::ranges::find(whole, axis) != whole.end()) continue;
      auto const rule = std::ranges::find(side_.map.rules, axis, &AxisRule::axis);
      if (rule != side_.map.rules.end()) return &*rule;
    }
    return nullptr;
  }

  /// Where no rule cuts a matrix, the form may cut its rows.
  void cut_rows(SideEntry& entry, LinearRoles const& roles, AdapterMatrix matrix,
                AxisRule const* out_rule) const {
    if (form_.cut.empty()) return;
    bool const first = matrix == AdapterMatrix::a;
    AxisRule const* const in_rule = rule_in(entry_.expr.dims[roles.dims.in]);
    AxisRule const* const own = first ? in_rule : out_rule;
    AxisRule const* const other = first ? out_rule : in_rule;
    if (own != nullptr) return;
    std::vector<std::string> const rows = axes_in(entry_.expr.dims[roles.dims.out]);
    AxisRule rule;
    rule.mesh = other != nullptr ? other->mesh : form_.cut;
    rule.axis = first ? fmt::format("rank{}", rank_) : rows.empty() ? std::string() : rows.front();
    rule.place = form_.place;
    if (!rule.axis.empty()) entry.row_rule = std::move(rule);
  }

  static bool is_in(std::vector<std::string> const& patterns, std::string_view weight) {
    return std::ranges::any_of(
        patterns, [&](std::string const& pattern) { return matches_glob(pattern, weight); });
  }

  /// In global formats: rows in the order in which programs join what ranks have.
  void order_rows(LayoutExpr::Factor& dim, AxisRule const& rule, std::string_view weight,
                  std::string_view word) const {
    bool const halved = !word.empty() && is_in(form_.halved, weight);
    bool const joined = is_in(form_.joined, weight) && dim.alternatives.size() > 1;
    Index const ranks = side_.options.mesh.size(rule.mesh);
    if (ranks <= 1 || !(halved || joined)) return;
    Index const size =
        side_.model.axes()[static_cast<AxisId>(side_.model.axes().find(rule.axis))].size;
    bool const fits = size % (halved ? 2 * ranks : ranks) == 0;
    if (fits && halved && put_halves_outside(dim, rule.axis, size, ranks)) return;
    if (fits && !halved && put_ranks_outside(dim, rule.axis, size, ranks)) return;
    fail(ErrorKind::usage,
         "{}: with {} = {}, the rows of the adapter of '{}' are in an order that parts of axis "
         "'{}' (size {}) cannot describe. Choose {} = 1, or mp_rank files.",
         entry_.written.place, rule.mesh, ranks, weight, rule.axis, size, rule.mesh);
  }

  AdapterSide const& side_;
  AdaptedEntry const& entry_;
  Index rank_;
  MapAdapter const& form_;
  std::vector<SideEntry> result_;
};

}  // namespace

bool takes_adapters(Model const& model, LayoutExpr const& expr, std::vector<std::string>& taken) {
  std::vector<std::string> const weights = expr.tensors();
  bool const there = std::ranges::all_of(weights, [&](std::string const& weight) {
    return in_base_model(model, weight) && std::ranges::find(taken, weight) == taken.end();
  });
  if (there) taken.insert(taken.end(), weights.begin(), weights.end());
  return there;
}

std::vector<SideEntry> adapter_entries(AdapterSide const& side, AdaptedEntry const& entry) {
  std::vector<SideEntry> result;
  for (Index const rank : side.model.adapter_ranks())
    for (SideEntry& made : AdapterMaker(side, entry, rank).run()) result.push_back(std::move(made));
  return result;
}

}  // namespace reshard
