#include "core/mapping/side_shares.hpp"

#include <algorithm>

#include "core/base/text.hpp"

namespace reshard {
namespace {

std::string divisors(Index n) {
  std::vector<std::string> found;
  for (Index d = 1; d <= std::min<Index>(n, 4096); ++d)
    if (n % d == 0) found.push_back(fmt::format("{}", d));
  return listed(found, 16);
}

}  // namespace

AxisRule const* SideShares::rule_of(SideEntry const& entry, AxisId axis) const {
  if (!options_.local) return nullptr;
  std::string const& name = model_.axes()[axis].name;
  if (std::find(entry.written->whole.begin(), entry.written->whole.end(), name) != entry.written->whole.end()) return nullptr;
  for (AxisRule const& rule : map_.rules)
    if (rule.axis == name && rule.mesh != "pp") return &rule;
  return nullptr;
}

int SideShares::mesh_size(std::string_view mesh) const {
  return mesh == "tp" ? options_.mesh.tp : mesh == "ep" ? options_.mesh.ep : options_.mesh.etp;
}
int SideShares::mesh_rank(std::string_view mesh, SidePlace const& place) {
  return mesh == "tp" ? place.tp_rank : mesh == "ep" ? place.ep_rank : place.etp_rank;
}

Index SideShares::padded(AxisRule const& rule, Index size) const {
  if (auto const known = options_.padded_sizes.find(rule.axis); known != options_.padded_sizes.end()) return known->second;
  if (rule.pad.empty()) return size;
  Index const multiple = rule.pad.integer(scope_.with(nullptr));
  if (multiple <= 0) fail(ErrorKind::usage, "{}: axis '{}' is padded to a multiple of {}; it must be above zero.", rule.place, rule.axis, multiple);
  return (size + multiple - 1) / multiple * multiple;
}

/// Whether the stored rows are cut instead of the axis: more ranks than indices.
bool SideShares::cuts_rows(AxisRule const& rule, Index size) const {
  int const ranks = mesh_size(rule.mesh);
  return rule.cut_rows && size % ranks != 0 && ranks > size;
}

void SideShares::check_divisible(AxisRule const& rule, Index size) const {
  int const ranks = mesh_size(rule.mesh);
  if (cuts_rows(rule, size)) {
    Index const whole = rule.divides.empty() ? ranks : rule.divides.integer(scope_.with(nullptr));
    if (whole % ranks == 0) return;
    fail(ErrorKind::usage, "{}{} = {}: '{}' is {}, which {} does not divide. Choose a divisor of {}: {}.", options_.place, rule.mesh, ranks,
         rule.divides.text(), whole, ranks, whole, divisors(whole));
  }
  if (size % ranks == 0) return;
  fail(ErrorKind::usage, "{}{} = {}: axis '{}' has {} indices, which {} does not divide. Choose a divisor of {}: {}.", options_.place, rule.mesh,
       ranks, rule.axis, size, ranks, size, divisors(size));
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

/// The extents of a view: its parts name no tensors.
static std::vector<Index> view_shape(LayoutExpr const& view, LayoutScope context, Shares const& shares) {
  context.tensor = [](std::string_view) { return 0; };
  return evaluate(view, context, shares).shape;
}

EntryLayout SideShares::evaluate_entry(SideEntry const& entry, SidePlace const& place) const {
  LayoutScope const context{&model_.axes(), [this](std::string_view name) { return model_.find_tensor(name); },
                            [this](std::string_view name) -> std::optional<Index> {
                              Json const value = scope_.value(name, nullptr);
                              return value.integer() == nullptr ? std::nullopt : std::optional<Index>(*value.integer());
                            }};
  Shares shares;
  AxisRule const* row_rule = nullptr;
  for (AxisId const axis : entry.shape_axes) {
    AxisRule const* rule = rule_of(entry, axis);
    if (rule == nullptr) continue;
    Index const size = model_.axes()[axis].size;
    if (cuts_rows(*rule, size)) {
      check_divisible(*rule, size);
      row_rule = rule;
    } else {
      shares.set(axis, share(*rule, size, place));
    }
  }
  EntryLayout result;
  result.layout = row_rule == nullptr ? evaluate(entry.expr, context, shares) : evaluate_rows(entry, *row_rule, context, shares, place);
  result.file_shape = entry.view ? view_shape(*entry.view, context, shares) : result.layout.shape;
  return result;
}

/// The rows of this rank in the dimension where the rule's axis stands.
Layout SideShares::evaluate_rows(SideEntry const& entry, AxisRule const& rule, LayoutScope const& context, Shares const& shares,
                                 SidePlace const& place) const {
  std::vector<Index> begin;
  std::vector<Index> end = evaluate(entry.expr, context, shares).shape;
  begin.resize(end.size(), 0);
  for (std::size_t d = 0; d < end.size(); ++d) {
    if (!holds_axis(entry.expr.dims[d], rule.axis)) continue;
    int const ranks = mesh_size(rule.mesh);
    if (end[d] % ranks != 0)
      fail(ErrorKind::usage, "{}{} = {}: '{}' has {} rows in dimension {}, which {} does not divide. Choose a divisor of {}.", options_.place,
           rule.mesh, ranks, entry.expr.text, end[d], d, ranks, end[d]);
    Index const part = end[d] / ranks;
    begin[d] = part * mesh_rank(rule.mesh, place);
    end[d] = begin[d] + part;
    break;
  }
  return evaluate_box(entry.expr, context, shares, begin, end);
}

bool SideShares::depends_on(SideEntry const& entry, std::string_view mesh) const {
  return std::any_of(entry.shape_axes.begin(), entry.shape_axes.end(), [&](AxisId axis) {
    AxisRule const* rule = rule_of(entry, axis);
    return rule != nullptr && rule->mesh == mesh;
  });
}

}  // namespace reshard
