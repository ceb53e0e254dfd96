#include "core/mapping/sides/side_shares.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "core/base/capture.hpp"
#include "core/base/divisors.hpp"
#include "core/base/text/text.hpp"
#include "core/layout/pieces/flat_boxes.hpp"
#include "core/mapping/sides/side_quant.hpp"

namespace reshard {
namespace {

/// " (from num_query_groups)": the args that the map computes an axis from; "" where it names none.
/// Words of the map itself have no '_'.
std::string args_of_axis(MapFile const& map, std::string_view axis) {
  std::vector<std::string> args;
  for (NamedExpression const& definition : map.axes)
    if (definition.name == axis)
      std::ranges::copy_if(
          definition.expression.keys(), std::back_inserter(args),
          [](std::string const& key) { return key.find('_') != std::string::npos; });
  return args.empty() ? "" : fmt::format(" (from {})", fmt::join(args, ", "));
}

/// Takes over the pieces of another meaning of the same bytes.
void append(Layout& to, Layout from) {
  RESHARD_EXPECT(to.shape == from.shape);
  to.pieces.insert(to.pieces.end(), std::make_move_iterator(from.pieces.begin()),
                   std::make_move_iterator(from.pieces.end()));
}

}  // namespace

AxisRule const* SideShares::rank_rule_of(SideEntry const& entry, AxisId axis) const {
  std::string const& name = model_.axes()[axis].name;
  if (entry.row_rule && entry.row_rule->axis == name) return &*entry.row_rule;
  if (std::find(entry.written->whole.begin(), entry.written->whole.end(), name) !=
      entry.written->whole.end())
    return nullptr;
  for (AxisRule const& rule : map_.rules)
    if (rule.axis == name) return &rule;
  return nullptr;
}

Index SideShares::padded(AxisRule const& rule, Index size) const {
  if (auto const known = options_.padded_sizes.find(rule.axis);
      known != options_.padded_sizes.end())
    return known->second;
  if (rule.pad.empty()) return size;
  Index const multiple = rule.pad.integer(scope_.with(nullptr));
  if (multiple <= 0)
    fail(ErrorKind::usage, "{}: axis '{}' is padded to a multiple of {}; it must be above zero.",
         rule.place, rule.axis, multiple);
  return (size + multiple - 1) / multiple * multiple;
}

/// Whether the stored rows are cut instead of the axis: more ranks than indices.
bool SideShares::cuts_rows(AxisRule const& rule, Index size) const {
  Index const ranks = mesh_size(rule.mesh);
  return rule.cut_rows && size % ranks != 0 && ranks > size;
}

void SideShares::check_divisible(AxisRule const& rule, Index size) const {
  Index const ranks = mesh_size(rule.mesh);
  if (cuts_rows(rule, size)) {
    Index const whole = rule.divides.empty() ? ranks : rule.divides.integer(scope_.with(nullptr));
    if (whole % ranks == 0) return;
    fail(ErrorKind::usage, "{}{} = {}: '{}' is {}, which {} does not divide. {}.", options_.place,
         rule.mesh, ranks, rule.divides.text(), whole, ranks, choice(rule, whole));
  }
  if (size % ranks == 0) return;
  bool const rows = rule.cut_rows && !rule.divides.empty();
  fail(ErrorKind::usage, "{}{} = {}: axis '{}'{} has {} indices, which {} does not divide. {}.",
       options_.place, rule.mesh, ranks, rule.axis, args_of_axis(map_, rule.axis), size, ranks,
       choice(rule, rows ? rule.divides.integer(scope_.with(nullptr)) : size));
}

/// Sizes to choose instead of one that does not divide `whole`.
std::string SideShares::choice(AxisRule const& rule, Index whole) const {
  if (!options_.lists_sizes)
    return fmt::format("Choose a divisor of {}: {}", whole, listed_divisors(whole));
  std::vector<std::string> sizes;
  for (Index const size : fitting_sizes(model_, map_, options_, rule.mesh, whole))
    sizes.push_back(std::to_string(size));
  return fmt::format("Sizes that fit: {}. Choose one of them", listed(sizes, 16));
}

/// How many positions a share of the axis has: the same on every rank.
Index SideShares::positions(SideEntry const& entry, AxisId axis) const {
  Index const size = model_.axes()[axis].size;
  AxisRule const* rule = rule_of(entry, axis);
  if (rule == nullptr) return size;
  check_divisible(*rule, size);
  return size / mesh_size(rule->mesh);
}

Share SideShares::share(AxisRule const& rule, Index size, SidePlace const& place) const {
  Index const whole = padded(rule, size);
  check_divisible(rule, whole);
  Index const part = whole / mesh_size(rule.mesh);
  Index const begin = part * mesh_rank(rule.mesh, place);
  Index const end = begin + part;
  Share result;
  if (begin < size) result.push_back({begin, std::min(end, size), false});
  if (end > size) result.push_back({0, end - std::max(begin, size), true});
  return result;
}

Run SideShares::rank_run(AxisRule const& rule, AxisId axis, SidePlace const& place) const {
  Index const size = model_.axes()[axis].size;
  check_divisible(rule, size);
  Index const part = size / mesh_size(rule.mesh);
  Index const begin = part * mesh_rank(rule.mesh, place);
  return {begin, begin + part, false};
}

/// A cut must not fall inside a block of a quantised weight: its scale or its packed bytes belong
/// to both sides.
void SideShares::check_cut(SideEntry const& entry, AxisRule const& rule, Index size) const {
  if (entry.part.empty() || entry.adapter) return;
  Index block = 1;  // the largest that a digit of the axis counts in, or lies in
  auto const number = [](std::string const& count) {
    return count.empty() ? Index{1} : static_cast<Index>(std::strtoll(count.c_str(), nullptr, 10));
  };
  for (TensorId const tensor : entry.tensors)
    for (LayoutExpr::Digit const& digit : entry.expr.digits_of(model_.tensor(tensor).name))
      if (digit.axis == rule.axis) block = std::max({block, number(digit.div), number(digit.mod)});
  Index const ranks = mesh_size(rule.mesh);
  Index const part = padded(rule, size) / ranks;
  if (block == 1 || ranks == 1 || part % block == 0) return;
  std::string legal;
  if (size % block == 0)
    legal = options_.lists_sizes
                ? choice(rule, size / block)
                : fmt::format("It has {} blocks: choose a size that divides {} ({})", size / block,
                              size / block, listed_divisors(size / block));
  else
    legal = fmt::format("{} is not a multiple of {}, so it cannot be cut: choose {} = 1", size,
                        block, rule.mesh);
  fail(
      ErrorKind::usage,
      "{}{} = {}: '{}': a cut of axis '{}' (size {}) at {} falls inside a block of {}. {}, or set model.quant = \"dequantise-bf16\".",
      options_.place, rule.mesh, ranks, model_.tensor(entry.tensors.front()).name, rule.axis, size,
      part, block, legal);
}

/// The extents of a view: its parts name no tensors.
static std::vector<Index> view_shape(LayoutExpr const& view, LayoutScope context,
                                     Shares const& shares) {
  context.tensor = [](std::string_view) { return TensorId{}; };
  return evaluate(view, context, shares).shape;
}

LayoutScope SideShares::context(AxisTable const& axes) const {
  return {&axes, [this](std::string_view name) { return model_.find_tensor(name); },
          [this](std::string_view name) -> std::optional<Index> {
            Json const value = scope_.value(name, nullptr);
            return value.integer() == nullptr ? std::nullopt
                                              : std::optional<Index>(*value.integer());
          }};
}

/// Shares of the axes of an entry on a global side: all, and padding after it.
Shares SideShares::padding(SideEntry const& entry) const {
  Shares shares;
  if (!options_.in_front) return shares;
  for (AxisId const axis : entry.shape_axes) {
    AxisRule const* rule = rank_rule_of(entry, axis);
    if (rule == nullptr) continue;
    Index const size = model_.axes()[axis].size;
    Index const whole = padded(*rule, size);
    if (whole < size) shares.set(axis, {{0, whole, false}});
    if (whole > size) shares.set(axis, {{0, size, false}, {0, whole - size, true}});
  }
  return shares;
}

SideShares::Held SideShares::held(SideEntry const& entry, SidePlace const& place) const {
  Held result{padding(entry)};
  for (AxisId const axis : entry.shape_axes) {
    AxisRule const* rule = rule_of(entry, axis);
    if (rule == nullptr) continue;
    Index const size = model_.axes()[axis].size;
    if (cuts_rows(*rule, size)) {
      check_divisible(*rule, size);
      result.row_rule = rule;
    } else {
      check_divisible(*rule, padded(*rule, size));
      check_cut(entry, *rule, size);
      result.shares.set(axis, share(*rule, size, place));
    }
  }
  return result;
}

EntryLayout SideShares::evaluate_entry(SideEntry const& entry, SidePlace const& place) const {
  LayoutScope const scope = context(model_.axes());
  auto const [shares, row_rule] = held(entry, place);
  EntryLayout result;
  result.layout = evaluate(entry.expr, scope, shares);
  if (row_rule != nullptr) {
    Rows const rows = cut_rows(entry, *row_rule, result.layout.shape, place);
    result.layout = evaluate_box(entry.expr, scope, shares, rows.begin, rows.end);
  }
  for (LayoutExpr const& other : entry.shared)
    append(result.layout, evaluate(other, scope, shares));
  result.file_shape = entry.view ? view_shape(*entry.view, scope, shares) : result.layout.shape;
  return result;
}

std::vector<Piece> SideShares::evaluate_entry_flat(SideEntry const& entry, SidePlace const& place,
                                                   Index begin, Index end) const {
  LayoutScope const scope = context(model_.axes());
  auto const [shares, row_rule] = held(entry, place);
  if (row_rule == nullptr) {
    Layout layout = evaluate_flat(entry.expr, scope, shares, begin, end);
    for (LayoutExpr const& other : entry.shared)
      append(layout, evaluate_flat(other, scope, shares, begin, end));
    return std::move(layout.pieces);
  }
  Rows const rows = cut_rows(entry, *row_rule, evaluate(entry.expr, scope, shares).shape, place);
  std::vector<Index> shape;
  for (std::size_t d = 0; d < rows.begin.size(); ++d) shape.push_back(rows.end[d] - rows.begin[d]);
  std::vector<Piece> result;
  for (FlatBox flat : flat_boxes(shape, begin, end)) {
    for (std::size_t d = 0; d < shape.size(); ++d) {
      flat.box.begin[d] += rows.begin[d];
      flat.box.end[d] += rows.begin[d];
    }
    Layout box = evaluate_box(entry.expr, scope, shares, flat.box.begin, flat.box.end);
    for (Piece& piece : box.pieces) {
      piece.offset += flat.offset;
      result.push_back(std::move(piece));
    }
  }
  return result;
}

std::vector<Index> SideShares::part_shape(SideEntry const& entry, QuantPart const& part,
                                          SidePlace const& place) const {
  LayoutScope scope = context(model_.axes());
  auto const size_of = [&](std::string const& name) {
    int const axis = model_.axes().find(name);
    return axis >= 0 ? model_.axes()[static_cast<AxisId>(axis)].size : scope.size(name).value_or(0);
  };
  SideEntry shaped = entry;
  shaped.expr =
      part_layouts(weight_of_part(entry, part), part, options_, map_, "", size_of).front();
  Shares shares = padding(entry);
  for (AxisId const axis : entry.shape_axes)
    if (AxisRule const* rule = rule_of(entry, axis);
        rule != nullptr && !cuts_rows(*rule, model_.axes()[axis].size))
      shares.set(axis, share(*rule, model_.axes()[axis].size, place));
  std::vector<Index> shape = view_shape(shaped.expr, scope, shares);
  for (AxisId const axis : entry.shape_axes)
    if (AxisRule const* rule = rule_of(entry, axis);
        rule != nullptr && cuts_rows(*rule, model_.axes()[axis].size)) {
      Rows const rows = cut_rows(shaped, *rule, shape, place);
      shape[rows.cut] = rows.end[rows.cut] - rows.begin[rows.cut];
    }
  return shape;
}

Layout SideShares::evaluate_entry_box(SideEntry const& entry, std::span<Index const> begin,
                                      std::span<Index const> end) const {
  if (entry.view)
    fail(ErrorKind::usage,
         "{}: a part of a tensor with a `view` cannot be described. Leave `view` out.",
         entry.written->place);
  LayoutScope const scope = context(model_.axes());
  Shares const shares = padding(entry);
  Layout layout = evaluate_box(entry.expr, scope, shares, begin, end);
  for (LayoutExpr const& other : entry.shared)
    append(layout, evaluate_box(other, scope, shares, begin, end));
  return layout;
}

/// The rows of a rank in the dimension where the rule's axis stands.
SideShares::Rows SideShares::cut_rows(SideEntry const& entry, AxisRule const& rule,
                                      std::vector<Index> const& shape,
                                      SidePlace const& place) const {
  Rows rows{std::vector<Index>(shape.size(), 0), shape, 0};
  while (!holds_axis(entry.expr.dims[rows.cut], rule.axis)) ++rows.cut;
  Index const ranks = mesh_size(rule.mesh);
  Index& end = rows.end[rows.cut];
  if (end % ranks != 0)
    fail(ErrorKind::usage,
         "{}{} = {}: '{}' has {} rows in dimension {}, which {} does not divide. {}.",
         options_.place, rule.mesh, ranks, entry.expr.text, end, rows.cut, ranks,
         choice(rule, end));
  Index const part = end / ranks;
  rows.begin[rows.cut] = part * mesh_rank(rule.mesh, place);
  end = rows.begin[rows.cut] + part;
  return rows;
}

/// The axes with their padding as indices of their own.
AxisTable SideShares::padded_axes() const {
  AxisTable result;
  for (AxisId axis = 0; axis < model_.axes().size(); ++axis) {
    Axis const& known = model_.axes()[axis];
    Index size = known.size;
    for (AxisRule const& rule : map_.rules)
      if (options_.in_front && rule.axis == known.name) size = padded(rule, size);
    result.add(known.name, size);
  }
  return result;
}

std::vector<std::vector<Run>> SideShares::rank_rows(SideEntry const& entry,
                                                    SidePlace const& place) const {
  AxisTable const axes = padded_axes();
  Shares shares;
  AxisRule const* row_rule = nullptr;
  for (AxisId const axis : entry.shape_axes) {
    AxisRule const* rule = rank_rule_of(entry, axis);
    if (rule == nullptr) continue;
    Index const size = axes[axis].size;
    check_divisible(*rule, size);
    if (cuts_rows(*rule, size)) {
      row_rule = rule;
      continue;
    }
    Index const part = size / mesh_size(rule->mesh);
    Index const begin = part * mesh_rank(rule->mesh, place);
    shares.set(axis, {{begin, begin + part, false}});
  }
  std::vector<std::vector<Run>> result = share_rows(entry.expr, context(axes), shares);
  if (row_rule != nullptr) {
    Rows const rows =
        cut_rows(entry, *row_rule, evaluate(entry.expr, context(axes), Shares{}).shape, place);
    result[rows.cut] = {{rows.begin[rows.cut], rows.end[rows.cut], false}};
  }
  return result;
}

bool SideShares::usable(SideEntry const& entry) const {
  for (TensorId const tensor : entry.tensors)
    if (!model_.exists(tensor)) return false;
  return entry.written->when.empty() || entry.written->when.holds(scope_.with(nullptr));
}

bool SideShares::fits(SideEntry const& entry) const {
  // An entry whose name is never made may be of axes that are not there.
  if (capture([&] { evaluate(entry.expr, context(model_.axes()), {}); })) return true;
  return !capture([&] {
    for (NameAxis const& counted : entry.name_axes)
      if (AxisRule const* rule = rank_rule_of(entry, counted.axis);
          rule != nullptr && !counted.part)
        rank_run(*rule, counted.axis, {});
    if (!options_.local) return void(rank_rows(entry, {}));
    auto const [shares, row_rule] = held(entry, {});
    if (row_rule != nullptr)
      cut_rows(entry, *row_rule, evaluate(entry.expr, context(model_.axes()), shares).shape, {});
  });
}

std::vector<std::size_t> SideShares::mesh_axes_of(SideEntry const& entry,
                                                  std::vector<AxisId> const& axes) const {
  std::vector<std::size_t> result;
  for (AxisId const axis : axes) {
    AxisRule const* rule = rank_rule_of(entry, axis);
    int const number = rule == nullptr ? -1 : options_.mesh.find(rule->mesh);
    if (number < 0 || mesh_size(rule->mesh) == 1) continue;
    if (std::ranges::find(result, static_cast<std::size_t>(number)) == result.end())
      result.push_back(static_cast<std::size_t>(number));
  }
  return result;
}

std::vector<std::size_t> SideShares::cut_by(SideEntry const& entry) const {
  return mesh_axes_of(entry, entry.shape_axes);
}

std::vector<std::size_t> SideShares::named_by(SideEntry const& entry) const {
  std::vector<AxisId> axes;
  for (NameAxis const& axis : entry.name_axes) axes.push_back(axis.axis);
  return mesh_axes_of(entry, axes);
}

}  // namespace reshard
