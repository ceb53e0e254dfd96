#include "core/mapping/sides/side.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "core/base/capture.hpp"
#include "core/base/divisors.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/sides/side_entry.hpp"
#include "core/mapping/sides/side_front.hpp"
#include "core/mapping/sides/side_names.hpp"
#include "core/mapping/sides/side_scope.hpp"
#include "core/mapping/sides/side_shares.hpp"

namespace reshard {
namespace {

/// An entry, and the number of a place among those that differ for it.
using EntryPlace = std::pair<std::uint32_t, Index>;

/// Each rule names a mesh axis of the map; no two of them cut the same axis, and what deals out
/// places cuts no axis.
void check_rules(MapFile const& map) {
  auto const is_place = [&map](AxisRule const& rule) {
    return std::ranges::any_of(map.places,
                               [&](auto const& known) { return known.name == rule.axis; });
  };
  for (AxisRule const& rule : map.rules) {
    if (!map.mesh.empty() && std::ranges::find(map.mesh, rule.mesh) == map.mesh.end())
      fail(ErrorKind::usage, "{}: '{}' is not a mesh axis. Known: {}.", rule.place, rule.mesh,
           listed(map.mesh));
    for (AxisRule const& other : map.rules) {
      if (&other == &rule) break;
      if (other.axis == rule.axis)
        fail(
            ErrorKind::usage,
            "{}: '{}' is cut by '{}' here, and by '{}' at {}. One mesh axis cuts an axis: remove one of the rules.",
            rule.place, rule.axis, rule.mesh, other.mesh, other.place);
      if (other.mesh == rule.mesh && is_place(other) != is_place(rule))
        fail(ErrorKind::usage,
             "{}: '{}' distributes the layers of a pipeline ('{}') and cuts an axis ('{}'). Give "
             "the axis to another mesh axis.",
             rule.place, rule.mesh, is_place(rule) ? rule.axis : other.axis,
             is_place(rule) ? other.axis : rule.axis);
    }
  }
}

}  // namespace

/// A layout that was evaluated, and its pieces as numbers once they were asked for.
struct KnownLayout {
  std::unique_ptr<EntryLayout> evaluated;
  std::vector<InternedPiece> pieces;
};

struct Side::Impl {
  Model const& model;
  MapFile const& map;
  SideOptions options;
  SideScope words;
  SideShares shares;
  SideFront front;
  std::vector<CompiledMacro> macros;
  std::vector<SideEntry> entries;
  std::map<EntryPlace, KnownLayout> layouts;
  std::vector<InternedPiece> asked;  ///< the answer of interned_pieces()
  std::map<std::pair<std::uint32_t, QuantPart const*>, std::optional<std::vector<Index>>>
      part_shapes;                                           ///< without axes in front
  std::map<EntryPlace, std::vector<std::vector<Run>>> rows;  ///< of ranks, without axes in front

  Impl(Model const& m, MapFile const& f, SideOptions o)
      : model(m),
        map(f),
        options(std::move(o)),
        words(m, f, options),
        shares(m, f, options, words),
        front(m, shares) {
    RESHARD_EXPECT(!options.local || !options.in_front);
    check_rules(map);
    macros = compile_macros(map);
    entries = compile_entries(map, model, macros, options, words.with(nullptr));
    for (SideEntry& entry : entries) {
      entry.cut_by = shares.cut_by(entry);
      entry.named_by = shares.named_by(entry);
    }
  }

  /// Logical tensors of the entries that are chosen, each once, in the map's order.
  std::vector<TensorId> tensors_of(std::function<bool(MapEntry const&)> const& chosen) const {
    std::vector<TensorId> result;
    for (SideEntry const& entry : entries)
      if (chosen(*entry.written))
        for (TensorId const tensor : entry.tensors)
          if (std::ranges::find(result, tensor) == result.end()) result.push_back(tensor);
    return result;
  }

  /// Where places differ for an entry: along the mesh axes that cut it.
  EntryPlace key_of(std::uint32_t number, SidePlace const& place) const {
    return {number, number_along(options.mesh, entries[number].cut_by, place.at)};
  }

  KnownLayout& layout(std::uint32_t number, SidePlace const& place) {
    KnownLayout& known = layouts[options.local ? key_of(number, place) : EntryPlace{number, 0}];
    if (!known.evaluated)
      known.evaluated =
          std::make_unique<EntryLayout>(shares.evaluate_entry(entries[number], place));
    return known;
  }

  std::vector<std::vector<Run>> const& rank_rows(std::uint32_t number, SidePlace const& place) {
    EntryPlace const key = key_of(number, place);
    if (auto const known = rows.find(key); known != rows.end()) return known->second;
    return rows.emplace(key, shares.rank_rows(entries[number], place)).first->second;
  }
};

Side::Side(Model const& model, MapFile const& map, SideOptions options)
    : impl_(std::make_unique<Impl>(model, map, std::move(options))) {}
Side::~Side() = default;
Side::Side(Side&&) noexcept = default;

std::vector<StoredName> Side::names(PipelineChunk const* chunk) const {
  return SideNames(impl_->model, impl_->map, impl_->options, impl_->words, impl_->shares,
                   impl_->macros, impl_->entries)
      .names(chunk);
}

EntryLayout const& Side::layout(std::uint32_t number, SidePlace const& place) const {
  return *impl_->layout(number, place).evaluated;
}

std::vector<Piece> Side::pieces(StoredName const& name, SidePlace const& place) const {
  Layout const& whole = layout(name.entry, place).layout;
  std::vector<Index> const end = SideFront::shape(name, whole.shape);
  std::vector<Piece> result =
      impl_->front.cross(name, whole.pieces, std::vector<Index>(end.size(), 0), end, whole.shape);
  impl_->front.add_name_digits(impl_->entries[name.entry], name, place, result);
  return result;
}

std::span<InternedPiece const> Side::interned_pieces(StoredName const& name,
                                                     SidePlace const& place) const {
  std::vector<InternedPiece>& result = impl_->asked;
  result.clear();
  if (!name.front.empty()) {
    for (Piece const& piece : pieces(name, place)) result.push_back(interned(piece));
    return result;
  }
  KnownLayout& known = impl_->layout(name.entry, place);
  std::vector<Piece> const& inner = known.evaluated->layout.pieces;
  if (known.pieces.empty())
    for (Piece const& piece : inner) known.pieces.push_back(interned(piece));
  result = known.pieces;
  Piece of_name;
  of_name.digits = impl_->front.name_digits(impl_->entries[name.entry], name, place);
  if (of_name.digits.empty()) return result;
  std::uint32_t const without = frame_of({});
  std::uint32_t const frame = frame_of(of_name);
  for (InternedPiece& piece : result) {
    if (piece.frame == without) {
      piece.frame = frame;
      continue;
    }
    Piece both;
    both.digits = PieceDigits(frame_digits(piece.frame).numbers(), of_name.digits.numbers());
    piece.frame = frame_of(both);
  }
  return result;
}

std::vector<Piece> Side::flat_pieces(StoredName const& name, SidePlace const& place, Index begin,
                                     Index end) const {
  RESHARD_EXPECT(impl_->options.local);
  SideEntry const& entry = impl_->entries[name.entry];
  std::vector<Piece> result = impl_->shares.evaluate_entry_flat(entry, place, begin, end);
  impl_->front.add_name_digits(entry, name, place, result);
  return result;
}

std::vector<Index> Side::shape(StoredName const& name) const {
  RESHARD_EXPECT(!impl_->options.local);
  return SideFront::shape(name, layout(name.entry, {}).file_shape);
}

std::vector<Piece> Side::box_pieces(StoredName const& name, std::span<Index const> begin,
                                    std::span<Index const> end) const {
  RESHARD_EXPECT(!impl_->options.local);
  std::size_t const front = name.front.size();
  if (begin.size() < front || end.size() != begin.size())
    fail(ErrorKind::source, "'{}': a box of {} dimensions does not fit a stored tensor of {}.",
         name.name, begin.size(), shape(name).size());
  SideEntry const& entry = impl_->entries[name.entry];
  Layout box = impl_->shares.evaluate_entry_box(entry, begin.subspan(front), end.subspan(front));
  std::vector<Piece> result =
      impl_->front.cross(name, std::move(box.pieces), begin, end, box.shape);
  impl_->front.add_name_digits(entry, name, {}, result);
  return result;
}

std::vector<std::vector<Run>> Side::rank_rows(StoredName const& name,
                                              SidePlace const& place) const {
  RESHARD_EXPECT(!impl_->options.local);
  return impl_->front.rank_rows(impl_->entries[name.entry], name, place,
                                impl_->rank_rows(name.entry, place));
}

std::optional<std::vector<Index>> Side::part_shape(StoredName const& name, QuantPart const& part,
                                                   SidePlace const& place) const {
  SideEntry const& entry = impl_->entries[name.entry];
  if (entry.view || !entry.part.empty() || entry.written->as_it_is) return std::nullopt;
  bool const cut = impl_->options.local && !entry.cut_by.empty();
  auto& known = impl_->part_shapes[{name.entry, &part}];
  if (known && !cut) return SideFront::shape(name, *known);
  try {
    known = impl_->shares.part_shape(entry, part, place);
  } catch (Error const&) {
    return std::nullopt;
  }
  return SideFront::shape(name, *known);
}

std::string Side::part_fault(StoredName const& name, QuantPart const& part,
                             SidePlace const& place) const {
  SideEntry const& entry = impl_->entries[name.entry];
  if (entry.view || !entry.part.empty() || entry.written->as_it_is) return "";
  try {
    (void)impl_->shares.part_shape(entry, part, place);
    return "";
  } catch (Error const& error) {
    return error.sentence();
  }
}

LayoutExpr const& Side::quantised_expression(std::uint32_t entry) const {
  return impl_->entries[entry].quantised;
}

EntryLayout Side::quantised_layout(std::uint32_t number, SidePlace const& place) const {
  SideEntry weight = impl_->entries[number];
  weight.expr = weight.quantised;
  return impl_->shares.evaluate_entry(weight, place);
}

void Side::add_name_digits(StoredName const& name, SidePlace const& place,
                           std::vector<Piece>& pieces) const {
  impl_->front.add_name_digits(impl_->entries[name.entry], name, place, pieces);
}

bool Side::as_it_is(std::uint32_t entry) const { return impl_->entries[entry].written->as_it_is; }
std::string const& Side::part(std::uint32_t entry) const { return impl_->entries[entry].part; }
bool Side::is_adapter(std::uint32_t entry) const { return impl_->entries[entry].adapter; }

std::vector<Index> Side::layers_of(StoredName const& name, TensorId tensor) const {
  std::optional<AxisId> const axis = impl_->model.layer_axis(tensor);
  if (!axis) return {};
  std::vector<Index> result;
  for (FrontAxis const& front : name.front)
    if (front.axis == *axis)
      for (Run const& run : front.runs)
        for (Index i = run.begin; i < run.end; ++i) result.push_back(i);
  if (!result.empty()) return result;
  auto const& axes = impl_->entries[name.entry].name_axes;
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (axes[i].axis == *axis) result.push_back(axes[i].index(name.positions[i]));
  return result;
}

std::string Side::weight_name(std::uint32_t number, std::string name, QuantPart const& part) const {
  std::string const& ending = impl_->entries[number].ending;
  if (part.fused && name.ends_with(ending)) name.resize(name.size() - ending.size());
  return name;
}

std::vector<TensorId> const& Side::tensors(std::uint32_t entry) const {
  return impl_->entries[entry].tensors;
}
std::optional<DType> Side::cast(std::uint32_t entry) const { return impl_->entries[entry].cast; }
std::vector<std::optional<DType>> Side::casts() const {
  std::vector<std::optional<DType>> result(impl_->model.tensors().size());
  for (SideEntry const& entry : impl_->entries)
    if (entry.cast && !entry.adapter)
      for (TensorId const tensor : entry.tensors) result[index(tensor)] = entry.cast;
  return result;
}
std::vector<int> Side::adds() const {
  std::vector<int> result(impl_->model.tensors().size(), 0);
  std::vector<SideEntry const*> said(result.size(), nullptr);
  for (SideEntry const& entry : impl_->entries) {
    if (entry.adapter ||
        (!entry.written->when.empty() && !entry.written->when.holds(impl_->words.with(nullptr))))
      continue;
    int const add = entry.written->add.empty()
                        ? 0
                        : narrow<int>(entry.written->add.integer(impl_->words.with(nullptr)));
    for (TensorId const tensor : entry.tensors) {
      auto const t = static_cast<std::size_t>(tensor);
      if (said[t] != nullptr && result[t] != add)
        fail(
            ErrorKind::usage,
            "{}: add = {}, and {} at {}: stored values of '{}' would differ. Give both entries the same `add`.",
            entry.written->place, add, result[t], said[t]->written->place,
            impl_->model.tensors()[t].name);
      said[t] = &entry;
      result[t] = add;
    }
  }
  return result;
}

std::string const& Side::entry_place(std::uint32_t entry) const {
  return impl_->entries[entry].written->place;
}
std::string const& Side::written_name(std::uint32_t entry) const {
  return impl_->map.stored[impl_->entries[entry].group].name;
}
std::string const& Side::written_layout(std::uint32_t entry) const {
  return impl_->entries[entry].written->is;
}

std::vector<TensorId> Side::optional_tensors() const {
  return impl_->tensors_of(
      [](MapEntry const& entry) { return entry.optional && entry.optional_when.empty(); });
}

std::vector<TensorId> Side::applying_tensors() const {
  return impl_->tensors_of([this](MapEntry const& entry) {
    return entry.when.empty() || entry.when.holds(impl_->words.with(nullptr));
  });
}

std::vector<TensorId> Side::conditional_tensors() const {
  return impl_->tensors_of([](MapEntry const& entry) { return !entry.optional_when.empty(); });
}

std::vector<TensorId> Side::conditional_tensors_that_may_lack() const {
  return impl_->tensors_of([this](MapEntry const& entry) {
    return !entry.optional_when.empty() && entry.optional_when.holds(impl_->words.with(nullptr));
  });
}

std::vector<TensorId> Side::required_tensors() const {
  return impl_->tensors_of([this](MapEntry const& entry) {
    ExpressionScope const words = impl_->words.with(nullptr);
    bool const may_lack =
        entry.optional && (entry.optional_when.empty() || entry.optional_when.holds(words));
    return !may_lack && entry.copy.empty() && (entry.when.empty() || entry.when.holds(words));
  });
}

bool Side::dropped(std::string_view stored_name) const {
  return std::any_of(
      impl_->map.drop.begin(), impl_->map.drop.end(),
      [&](std::string const& pattern) { return matches_glob(pattern, stored_name); });
}

bool Side::keeps(std::string_view stored_name) const {
  return std::any_of(
      impl_->map.keep.begin(), impl_->map.keep.end(),
      [&](std::string const& pattern) { return matches_glob(pattern, stored_name); });
}

Mesh const& Side::mesh() const { return impl_->options.mesh; }

SideEntry const& Side::compiled(std::uint32_t entry) const { return impl_->entries[entry]; }

AxisRule const* Side::rank_rule(std::uint32_t entry, AxisId axis) const {
  return impl_->shares.rank_rule_of(impl_->entries[entry], axis);
}

std::optional<Index> Side::named_size(std::string_view name) const {
  Json const value = impl_->words.value(name, nullptr);
  return value.integer() == nullptr ? std::nullopt : std::optional<Index>(*value.integer());
}

Index Side::padded_size(std::string_view axis) const {
  int const id = impl_->model.axes().find(axis);
  if (id < 0) return 0;
  Index const size = impl_->model.axes()[static_cast<AxisId>(id)].size;
  for (AxisRule const& rule : impl_->map.rules)
    if ((impl_->options.local || impl_->options.in_front) && rule.axis == axis)
      return impl_->shares.padded(rule, size);
  return size;
}

std::optional<Run> Side::held(std::string_view axis, SidePlace const& place) const {
  int const id = impl_->model.axes().find(axis);
  if (id < 0) return std::nullopt;
  for (AxisRule const& rule : impl_->map.rules)
    if (rule.axis == axis) return impl_->shares.rank_run(rule, static_cast<AxisId>(id), place);
  return Run{0, impl_->model.axes()[static_cast<AxisId>(id)].size, false};
}

bool Side::fits() const {
  return std::ranges::all_of(impl_->entries, [&](SideEntry const& entry) {
    return !impl_->shares.usable(entry) || impl_->shares.fits(entry);
  });
}

bool Side::cuts(std::string_view mesh_axis) const {
  return std::ranges::any_of(impl_->map.rules, [&](AxisRule const& rule) {
    return rule.mesh == mesh_axis && impl_->model.axes().find(rule.axis) >= 0;
  });
}

std::string Side::place_text(SidePlace const& place) const {
  std::string text;
  for (MeshAxis const& axis : impl_->options.mesh.axes())
    if (cuts(axis.name))
      text += fmt::format("{}{} {}", text.empty() ? "" : " · ", axis.name,
                          impl_->options.mesh.coordinate(place.at, axis.name));
  return text;
}

std::vector<Index> fitting_sizes(Model const& model, MapFile const& map, SideOptions const& options,
                                 std::string_view mesh_axis, Index whole) {
  std::vector<Index> sizes;
  SideOptions tried = options;
  tried.lists_sizes = false;
  std::vector<MeshAxis> axes = options.mesh.axes();
  for (MeshAxis& other : axes) other.size = 1;
  auto const axis = std::ranges::find(axes, mesh_axis, &MeshAxis::name);
  if (axis == axes.end()) return sizes;
  for (Index const size : divisors(whole)) {
    axis->size = size;
    tried.mesh = Mesh(axes);
    bool fits = false;
    if (!capture([&] { fits = Side(model, map, tried).fits(); }) && fits) sizes.push_back(size);
  }
  return sizes;
}

void apply_present(Model& model, MapFile const& map) {
  ExpressionScope scope;
  scope.key = [&model](std::string_view name) { return std::optional<Json>(model.value(name)); };
  for (NamedExpression const& condition : map.present) {
    bool const holds = condition.expression.holds(scope);
    for (std::size_t t = 0; t < model.tensors().size(); ++t)
      if (!holds && matches_glob(condition.name, model.tensors()[t].name))
        model.set_exists(TensorId(t), false);
  }
}

void apply_family(Model& model, Side const& family) {
  for (std::size_t t = 0; t < model.tensors().size(); ++t) model.set_exists(TensorId(t), false);
  for (TensorId const tensor : family.required_tensors()) model.set_exists(tensor, true);
  std::vector<TensorId> const applying = family.applying_tensors();
  for (TensorId const tensor : family.optional_tensors())
    if (std::ranges::count(applying, tensor) != 0) model.set_exists(tensor, true);
  for (TensorId const tensor : family.conditional_tensors()) model.set_exists(tensor, true);
}

}  // namespace reshard
