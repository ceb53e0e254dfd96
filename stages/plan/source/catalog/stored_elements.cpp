#include "stages/plan/source/catalog/stored_elements.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "core/base/error.hpp"
#include "core/mapping/sides/side_entry.hpp"
#include "core/plan/equal/state_checks.hpp"
#include "stages/plan/source/catalog/stored_shares.hpp"
#include "stages/plan/source/source_model.hpp"
#include "stages/plan/source/state/master_weights.hpp"

namespace reshard {
namespace {

using Kind = LayoutExpr::Factor::Kind;

std::string with_slot(std::string const& tensor, std::string const& slot) {
  return slot.empty() ? tensor : fmt::format("{} ({})", tensor, slot);
}

/// Forms of state have different words for master weights.
std::string slot_word(std::string const& slot) {
  return is_master_slot(slot) ? std::string("master") : slot;
}

class TableMaker {
 public:
  TableMaker(Checkpoint const& checkpoint, SourceModel const& read, Side const& side)
      : checkpoint_(checkpoint), read_(read), model_(*read.model), side_(side) {
    table_.axes = model_.axes();
    adds_ = side.adds();
    described_.resize(checkpoint.stored.tensors.size(), false);
  }

  ElementTable run() {
    StoredShares const shares(checkpoint_, read_.facts.view, read_.stored.chunks);
    std::vector<std::vector<StoredName>> const names = shares.names(side_);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      StoredShare const share = shares[i];
      add_share(share, names[share.chunk], "");
    }
    for (std::size_t s = 0;
         s < read_.facts.view.state_tables.size() && s + 1 < model_.slots().size(); ++s) {
      StoredShare share;
      for (auto const& [name, at] : read_.facts.view.state_tables[s])
        share.tensors.emplace(name, at);
      add_share(share, names.front(), slot_word(model_.slots()[s + 1]));
    }
    for (std::size_t t = 0; t < described_.size(); ++t)
      if (!described_[t]) table_.not_described.push_back(t);
    return std::move(table_);
  }

 private:
  bool local() const { return checkpoint_.storage == Storage::shares; }
  bool in_front() const { return checkpoint_.names == NameOwner::megatron && !local(); }

  void add_share(StoredShare const& share, std::vector<StoredName> const& names,
                 std::string const& slot) {
    for (StoredName const& name : names) {
      auto found = share.tensors.find(name.name);
      for (std::size_t a = 0; found == share.tensors.end() && a < name.aliases.size(); ++a)
        found = share.tensors.find(name.aliases[a]);
      if (found == share.tensors.end()) continue;
      described_[found->second] = true;
      add(share, name, found->second, slot);
    }
  }

  void add(StoredShare const& share, StoredName const& name, std::size_t stored,
           std::string const& slot) {
    SideEntry const& entry = side_.compiled(name.entry);
    StoredElements result;
    result.stored = stored;
    result.slot = slot;
    result.copy = name.copy;
    if (!entry.tensors.empty() && slot.empty()) result.add = adds_[index(entry.tensors.front())];
    for (TensorId const tensor : entry.tensors)
      result.tensors.push_back(with_slot(model_.tensor(tensor).name, slot));
    result.rule.trees = trees_of(name.entry);
    for (FrontAxis const& front : name.front) result.rule.front.push_back(counted(front));
    add_named(share, name, entry, result.rule);
    add_held(share, name.entry, entry, result.rule);
    result.shape = element_shape(result.rule, table_.axes);
    check_shape(checkpoint_.stored.tensors[stored], result.shape, entry.view.has_value());
    table_.tensors.push_back(std::move(result));
  }

  std::vector<std::shared_ptr<ElementTree const>> const& trees_of(std::uint32_t number) {
    auto& known = trees_[number];
    if (!known.empty()) return known;
    SideEntry const& entry = side_.compiled(number);
    auto const size = [this](std::string_view word) { return side_.named_size(word); };
    auto const add = [&](LayoutExpr const& expr) {
      known.push_back(std::make_shared<ElementTree const>(element_tree(expr, table_.axes, size)));
    };
    add(entry.expr);
    for (LayoutExpr const& other : entry.shared) add(other);
    return known;
  }

  static ElementRule::Front counted(FrontAxis const& front) {
    ElementRule::Front result{front.axis, {}};
    for (Run const& run : front.runs)
      for (Index i = run.begin; i < run.end; ++i) result.indices.push_back(i);
    return result;
  }

  Index rank_of(AxisRule const& rule, StoredShare const& share) const {
    return checkpoint_.shares.mesh.coordinate(share.place.at, rule.mesh);
  }

  void add_named(StoredShare const& share, StoredName const& name, SideEntry const& entry,
                 ElementRule& rule) const {
    for (std::size_t i = 0; i < entry.name_axes.size(); ++i) {
      NameAxis const& axis = entry.name_axes[i];
      bool const counted_in_front = std::ranges::any_of(
          name.front, [&](auto const& front) { return front.axis == axis.axis; });
      if (!axis.of_tensor || counted_in_front) continue;
      if (axis.part) {
        rule.named.push_back({axis.axis, axis.part->mod, axis.part->div, name.positions[i]});
        continue;
      }
      Index value = name.positions[i];
      AxisRule const* const cut = local() ? side_.rank_rule(name.entry, axis.axis) : nullptr;
      if (cut != nullptr)
        value += table_.axes[axis.axis].size / checkpoint_.shares.mesh.size(cut->mesh) *
                 rank_of(*cut, share);
      rule.named.push_back({axis.axis, 0, 1, value});
    }
  }

  /// Adds the shares of the ranks of a mesh in an axis of the shape: equal parts of its size,
  /// padding counted. Where they are more than its indices, and the map says so, equal parts of the
  /// rows.
  void add_held(StoredShare const& share, std::uint32_t number, SideEntry const& entry,
                ElementRule& rule) const {
    for (AxisId const axis : entry.shape_axes) {
      AxisRule const* const cut = side_.rank_rule(number, axis);
      if (cut == nullptr || !(local() || in_front())) continue;
      Index const size = table_.axes[axis].size;
      Index const ranks = local() ? checkpoint_.shares.mesh.size(cut->mesh) : 1;
      if (cut->cut_rows && ranks > size && size % ranks != 0) {
        rule.rows = rows_of(entry.expr, rule, table_.axes[axis].name, ranks, rank_of(*cut, share));
        continue;
      }
      Index const part = side_.padded_size(table_.axes[axis].name) / ranks;
      Index const begin = local() ? part * rank_of(*cut, share) : 0;
      Index const real = std::clamp<Index>(size - begin, 0, part);
      ElementRule::Held held{axis, {}};
      if (real > 0) held.runs.push_back({begin, begin + real, false});
      if (real < part) held.runs.push_back({0, part - real, true});
      rule.held.push_back(std::move(held));
    }
  }

  ElementRule::Rows rows_of(LayoutExpr const& expr, ElementRule const& rule,
                            std::string const& axis, Index ranks, Index rank) const {
    ElementRule::Rows rows;
    while (!holds_axis(expr.dims[rows.dim], axis)) ++rows.dim;
    rows.count = element_shape(rule, table_.axes)[rule.front.size() + rows.dim] / ranks;
    rows.begin = rows.count * rank;
    return rows;
  }

  void check_shape(StoredTensor const& stored, std::vector<Index> const& shape, bool view) const {
    auto const volume = [&](std::vector<Index> const& extents) {
      return checked_volume(extents, ErrorKind::source, stored.name);
    };
    if (stored.shape == shape || (view && volume(stored.shape) == volume(shape))) return;
    fail(ErrorKind::self_check,
         "{}: '{}' has the shape [{}], and the second arithmetic gives it [{}]. One of the two is "
         "wrong: do not use the checkpoint, and report both.",
         checkpoint_.place, stored.name, fmt::join(stored.shape, ", "), fmt::join(shape, ", "));
  }

  Checkpoint const& checkpoint_;
  SourceModel const& read_;
  Model const& model_;
  Side const& side_;
  std::map<std::uint32_t, std::vector<std::shared_ptr<ElementTree const>>> trees_;
  std::vector<int> adds_;
  std::vector<bool> described_;
  ElementTable table_;
};

ElementTree::Factor digit_of(AxisId axis, Index div) {
  ElementTree::Factor factor;
  factor.kind = Kind::digit;
  factor.axis = axis;
  factor.div = div;
  return factor;
}

/// A container of logical tensors: each is the row-major array of its axes.
ElementTable logical_table(Checkpoint const& checkpoint, Model const& model) {
  ElementTable table;
  table.axes = model.axes();
  for (std::size_t i = 0; i < checkpoint.stored.tensors.size(); ++i) {
    std::string const name = checkpoint.stored.tensors.name(i);
    std::optional<TensorId> const tensor = model.find_tensor(name);
    if (!tensor) {
      table.not_described.push_back(i);
      continue;
    }
    LogicalTensor const& logical = model.tensor(*tensor);
    std::string const& slot = model.slots()[index(logical.slot)];
    ElementTree tree;
    tree.tag =
        logical.slot == SlotId::weight ? name : name.substr(0, name.size() - slot.size() - 3);
    StoredElements result;
    result.stored = i;
    result.slot = logical.slot == SlotId::weight ? "" : slot_word(slot);
    result.tensors = {with_slot(tree.tag, result.slot)};
    for (DomainAxis const& axis : model.meant_domain(logical)) {
      tree.dims.push_back(digit_of(axis.axis, axis.div));
      ElementRule::Held held{axis.axis, {}};
      for (Run const& run : axis.runs)
        held.runs.push_back({run.begin * axis.div, run.end * axis.div, false});
      result.rule.held.push_back(std::move(held));
    }
    result.rule.trees = {std::make_shared<ElementTree const>(std::move(tree))};
    result.shape = element_shape(result.rule, table.axes);
    table.tensors.push_back(std::move(result));
  }
  return table;
}

}  // namespace

ElementTable element_table(Checkpoint const& checkpoint, PlanRequest const& request) {
  ElementTable table;
  SourceModel const read =
      read_source_model(checkpoint, request, true, [&](SourceModel const& known, Side const& side) {
        table = TableMaker(checkpoint, known, side).run();
        table.masters_alone = holds_masters_alone(checkpoint, known.facts.view);
      });
  return checkpoint.names == NameOwner::logical ? logical_table(checkpoint, *read.model)
                                                : std::move(table);
}

ElementTable named_element_table(Checkpoint const& checkpoint, std::string const& prefix) {
  ElementTable table;
  for (std::size_t i = 0; i < checkpoint.stored.tensors.size(); ++i) {
    StoredTensor const& stored = checkpoint.stored.tensors[i];
    std::string const name = stored.name;
    if (!name.starts_with(prefix)) {
      table.not_described.push_back(i);
      continue;
    }
    StoredElements result;
    ElementTree tree;
    tree.tag = name.substr(prefix.size());
    for (std::size_t d = 0; d < stored.shape.size(); ++d) {
      while (table.axes.size() <= d) table.axes.add(fmt::format("{}", table.axes.size()), 0);
      tree.dims.push_back(digit_of(static_cast<AxisId>(d), 1));
      result.rule.held.push_back({static_cast<AxisId>(d), {{0, stored.shape[d], false}}});
    }
    result.stored = i;
    result.tensors = {tree.tag};
    result.rule.trees = {std::make_shared<ElementTree const>(std::move(tree))};
    result.shape = stored.shape;
    table.tensors.push_back(std::move(result));
  }
  return table;
}

}  // namespace reshard
