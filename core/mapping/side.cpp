#include "core/mapping/side.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core/base/text.hpp"
#include "core/mapping/side_entry.hpp"
#include "core/mapping/side_scope.hpp"
#include "core/mapping/side_shares.hpp"

namespace reshard {
namespace {

constexpr int deepest_macro = 8;

using Variable = SideVariable;

}  // namespace

struct Side::Impl {
  Model const& model;
  MapFile const& map;
  SideOptions options;
  SideScope words;
  SideShares shares;
  std::vector<CompiledMacro> macros;
  std::vector<SideEntry> entries;
  std::map<std::tuple<std::uint32_t, int, int, int>, std::unique_ptr<EntryLayout>> layouts;

  Impl(Model const& m, MapFile const& f, SideOptions o)
      : model(m), map(f), options(std::move(o)), words(m, f, options), shares(m, f, options, words) {
    macros = compile_macros(map);
    entries = compile_entries(map, model, macros, scope(nullptr));
    for (AxisRule const& rule : map.rules)
      if (rule.mesh != "tp" && rule.mesh != "etp" && rule.mesh != "ep" && rule.mesh != "pp")
        fail(ErrorKind::usage, "{}: '{}' is no mesh axis. Known: tp, etp, ep, pp.", rule.place, rule.mesh);
  }

  ExpressionScope scope(std::vector<Variable> const* variables) const { return words.with(variables); }

  bool usable(SideEntry const& entry) const {
    for (int const tensor : entry.tensors)
      if (!model.exists(tensor)) return false;
    return entry.written->when.empty() || entry.written->when.holds(scope(nullptr));
  }

  /// 0: not in this chunk; 1: the first place it is allowed at; 2: a later one, which holds a copy.
  int placed(SideEntry const& entry, PipelineChunk const* chunk) const {
    if (entry.written->at.empty() || chunk == nullptr) return 1;
    bool first = true;
    for (std::string const& place : entry.written->at) {
      if (at_place(entry, place, *chunk)) return first ? 1 : 2;
      first = false;
    }
    return 0;
  }

  bool at_place(SideEntry const& entry, std::string const& place, PipelineChunk const& chunk) const {
    if (place == "E") return chunk.embedding;
    if (place == "L") return chunk.head;
    if (place == "m") return !chunk.mtp.empty() && !chunk.embedding;
    auto const equals = place.find('=');
    if (equals == std::string::npos)
      fail(ErrorKind::usage, "{}: at = \"{}\" is no place. Known: E, L, m, or decoder=NUMBER.", entry.written->place, place);
    Index const number = Expression::parse(place.substr(equals + 1), entry.written->place).integer(scope(nullptr));
    return position_of(place_runs(place.substr(0, equals), chunk, entry.written->place), number) >= 0;
  }

  static std::vector<Run> const& place_runs(std::string_view place, PipelineChunk const& chunk, std::string const& where) {
    if (place == "decoder") return chunk.decoder;
    if (place == "mtp") return chunk.mtp;
    fail(ErrorKind::usage, "{}: '{}' is no place of a pipeline chunk. Known: decoder, mtp.", where, place);
  }

  /// The text of a name under these numbers; nothing when a place number lies outside the chunk.
  std::optional<std::string> make_name(NameTemplate const& name, std::vector<Variable> const& variables, PipelineChunk const* chunk,
                                       std::string const& where, int depth = 0) const {
    if (depth > deepest_macro) fail(ErrorKind::usage, "{}: macros nested deeper than {}. Break the cycle.", where, deepest_macro);
    std::string result;
    for (auto const& segment : name.segments()) {
      result += segment.literal;
      if (segment.macro >= 0) {
        std::optional<std::string> const inner = make_macro(static_cast<std::size_t>(segment.macro), variables, chunk, where, depth);
        if (!inner) return std::nullopt;
        result += *inner;
      } else if (!segment.expression.empty()) {
        if (!append_field(result, segment, variables, chunk, where)) return std::nullopt;
      }
    }
    return result;
  }

  bool append_field(std::string& result, NameTemplate::Segment const& segment, std::vector<Variable> const& variables, PipelineChunk const* chunk,
                    std::string const& where) const {
    Json value;
    std::string_view const single = segment.expression.single_key();
    auto const direct = std::find_if(variables.begin(), variables.end(), [&](Variable const& v) { return model.axes()[v.axis].name == single; });
    value = direct != variables.end() ? Json(direct->value) : segment.expression.evaluate(scope(&variables));
    if (auto const* text = value.text()) {
      result += *text;
      return true;
    }
    auto const* number = value.integer();
    if (number == nullptr)
      fail(ErrorKind::usage, "{}: the field '{}' of a name is {}, a number or a text is needed.", where, segment.expression.text(), value.dump());
    Index shown = *number;
    if (!segment.place.empty() && chunk != nullptr) {
      shown = position_of(place_runs(segment.place, *chunk, where), *number);
      if (shown < 0) return false;
    }
    fmt::format_to(std::back_inserter(result), "{}", shown);
    return true;
  }

  std::optional<std::string> make_macro(std::size_t macro, std::vector<Variable> const& variables, PipelineChunk const* chunk,
                                        std::string const& where, int depth) const {
    auto const& choices = map.macros[macro].choices;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (!choices[i].in.empty() && !member(choices[i].in, variables)) continue;
      if (!choices[i].when.empty() && !choices[i].when.holds(scope(&variables))) continue;
      return make_name(macros[macro].texts[i], variables, chunk, where, depth + 1);
    }
    fail(ErrorKind::usage, "{}: no choice of the name '{}' holds here. Add a last choice without condition.", where, map.macros[macro].name);
  }

  bool member(std::string const& set, std::vector<Variable> const& variables) const {
    std::string_view const axis = std::string_view(set).substr(0, set.find('.'));
    for (Variable const& variable : variables)
      if (model.axes()[variable.axis].name == axis) return model.in_set(set, variable.value);
    return false;
  }

  bool in_domain(SideEntry const& entry, AxisId axis, Index value) const {
    for (int const tensor : entry.tensors)
      for (LogicalAxis const& logical : model.tensors()[static_cast<std::size_t>(tensor)].axes)
        if (logical.axis == axis && !model.in_set(logical.set, value)) return false;
    std::string const& in = entry.written->in;
    if (!in.empty() && std::string_view(in).substr(0, in.find('.')) == model.axes()[axis].name) return model.in_set(in, value);
    return true;
  }

  void enumerate(std::uint32_t number, PipelineChunk const* chunk, bool copy, std::vector<Variable>& variables, std::vector<StoredName>& out) const {
    SideEntry const& entry = entries[number];
    std::size_t const level = variables.size();
    if (level == entry.name_axes.size()) {
      std::optional<std::string> name = make_name(entry.name, variables, chunk, entry.written->place);
      if (!name) return;
      StoredName stored{std::move(*name), {}, number, {}, copy};
      for (NameTemplate const& alias : entry.aliases)
        if (auto text = make_name(alias, variables, chunk, entry.written->place)) stored.aliases.push_back(std::move(*text));
      for (Variable const& variable : variables) stored.positions.push_back(variable.value);
      out.push_back(std::move(stored));
      return;
    }
    AxisId const axis = entry.name_axes[level].axis;
    Index const count = shares.positions(entry, axis);
    bool const whole = count == model.axes()[axis].size;
    for (Index i = 0; i < count; ++i) {
      if (whole && !in_domain(entry, axis, i)) continue;
      variables.push_back({axis, i});
      if (level + 1 == entry.name_axes.size() || on_chunk(entry, variables, chunk)) enumerate(number, chunk, copy, variables, out);
      variables.pop_back();
    }
  }

  /// Whether names under these first numbers are in the chunk at all: asks with the first index of the other axes.
  bool on_chunk(SideEntry const& entry, std::vector<Variable> const& variables, PipelineChunk const* chunk) const {
    if (chunk == nullptr) return true;
    std::vector<Variable> probe = variables;
    for (std::size_t i = variables.size(); i < entry.name_axes.size(); ++i) probe.push_back({entry.name_axes[i].axis, 0});
    return make_name(entry.name, probe, chunk, entry.written->place).has_value();
  }

  /// Layer by layer, as loaders go: what the map lists before the first entry with layers, the layers, the rest.
  void sort_by_layer(std::vector<StoredName>& names) const {
    int const layer = model.axes().find("layer");
    auto const layer_of = [&](StoredName const& name) -> Index {
      auto const& axes = entries[name.entry].name_axes;
      for (std::size_t i = 0; i < axes.size(); ++i)
        if (axes[i].axis == layer && axes[i].of_tensor) return name.positions[i];
      return -1;
    };
    std::uint32_t first_layered = static_cast<std::uint32_t>(entries.size());
    for (StoredName const& name : names)
      if (layer_of(name) >= 0) first_layered = std::min(first_layered, name.entry);
    auto const place = [&](StoredName const& name) {
      Index const of_layer = layer_of(name);
      return of_layer >= 0 ? of_layer + 1 : name.entry < first_layered ? 0 : std::numeric_limits<Index>::max();
    };
    std::stable_sort(names.begin(), names.end(), [&](StoredName const& a, StoredName const& b) { return place(a) < place(b); });
  }
};

Side::Side(Model const& model, MapFile const& map, SideOptions options) : impl_(std::make_unique<Impl>(model, map, std::move(options))) {}
Side::~Side() = default;
Side::Side(Side&&) noexcept = default;

std::vector<StoredName> Side::names(PipelineChunk const* chunk) const {
  std::vector<StoredName> result;
  std::unordered_map<std::string, std::size_t> made;  // name -> group
  for (std::uint32_t e = 0; e < impl_->entries.size(); ++e) {
    SideEntry const& entry = impl_->entries[e];
    if (!impl_->usable(entry)) continue;
    int const placed = impl_->placed(entry, chunk);
    if (placed == 0) continue;
    bool const further = !entry.written->copy.empty();
    if (further && !entry.written->copy.holds(impl_->scope(nullptr))) continue;
    std::vector<Variable> variables;
    std::vector<StoredName> names;
    impl_->enumerate(e, chunk, further || placed == 2, variables, names);
    for (StoredName& name : names) {
      auto const [known, is_new] = made.emplace(name.name, entry.group);
      if (!is_new && known->second != entry.group)
        fail(ErrorKind::usage, "'{}' is made by {} and by {}. Limit one of them with `in` or `when`.", name.name,
             impl_->map.stored[known->second].place, entry.written->place);
      if (is_new) result.push_back(std::move(name));
    }
  }
  impl_->sort_by_layer(result);
  return result;
}

EntryLayout const& Side::layout(std::uint32_t number, SidePlace const& place) const {
  SideEntry const& entry = impl_->entries[number];
  SidePlace reduced;
  reduced.tp_rank = impl_->shares.depends_on(entry, "tp") ? place.tp_rank : 0;
  reduced.ep_rank = impl_->shares.depends_on(entry, "ep") ? place.ep_rank : 0;
  reduced.etp_rank = impl_->shares.depends_on(entry, "etp") ? place.etp_rank : 0;
  auto& slot = impl_->layouts[{number, reduced.tp_rank, reduced.ep_rank, reduced.etp_rank}];
  if (!slot) slot = std::make_unique<EntryLayout>(impl_->shares.evaluate_entry(entry, reduced));
  return *slot;
}

std::vector<Piece> Side::pieces(StoredName const& name, SidePlace const& place) const {
  SideEntry const& entry = impl_->entries[name.entry];
  std::vector<Piece> result = layout(name.entry, place).layout.pieces;
  for (std::size_t i = 0; i < entry.name_axes.size(); ++i) {
    if (!entry.name_axes[i].of_tensor) continue;
    AxisId const axis = entry.name_axes[i].axis;
    AxisRule const* rule = impl_->shares.rule_of(entry, axis);
    Index first = name.positions[i];
    if (rule != nullptr) first += impl_->shares.positions(entry, axis) * SideShares::mesh_rank(rule->mesh, place);
    for (Piece& piece : result) piece.digits.push_back({axis, impl_->model.axes()[axis].size, 1, first, 1, 0});
  }
  return result;
}

std::vector<int> const& Side::tensors(std::uint32_t entry) const { return impl_->entries[entry].tensors; }
std::optional<DType> Side::cast(std::uint32_t entry) const { return impl_->entries[entry].cast; }
std::string const& Side::entry_place(std::uint32_t entry) const { return impl_->entries[entry].written->place; }

namespace {
void add_unique(std::vector<int>& list, int item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}
}  // namespace

std::vector<int> Side::optional_tensors() const {
  std::vector<int> result;
  for (SideEntry const& entry : impl_->entries)
    if (entry.written->optional)
      for (int const tensor : entry.tensors) add_unique(result, tensor);
  return result;
}

std::vector<int> Side::required_tensors() const {
  std::vector<int> result;
  for (SideEntry const& entry : impl_->entries) {
    if (entry.written->optional || !entry.written->copy.empty()) continue;
    if (!entry.written->when.empty() && !entry.written->when.holds(impl_->scope(nullptr))) continue;
    for (int const tensor : entry.tensors) add_unique(result, tensor);
  }
  return result;
}

bool Side::dropped(std::string_view stored_name) const {
  return std::any_of(impl_->map.drop.begin(), impl_->map.drop.end(), [&](std::string const& pattern) { return matches_glob(pattern, stored_name); });
}

Index Side::padded_size(std::string_view axis) const {
  int const id = impl_->model.axes().find(axis);
  if (id < 0) return 0;
  Index const size = impl_->model.axes()[static_cast<AxisId>(id)].size;
  for (AxisRule const& rule : impl_->map.rules)
    if (impl_->options.local && rule.axis == axis && rule.mesh != "pp") return impl_->shares.padded(rule, size);
  return size;
}

void apply_present(Model& model, MapFile const& map) {
  ExpressionScope scope;
  scope.key = [&model](std::string_view name) { return std::optional<Json>(model.value(name)); };
  for (NamedExpression const& condition : map.present) {
    bool const holds = condition.expression.holds(scope);
    for (std::size_t t = 0; t < model.tensors().size(); ++t)
      if (!holds && matches_glob(condition.name, model.tensors()[t].name)) model.set_exists(static_cast<int>(t), false);
  }
}

void apply_family(Model& model, Side const& family) {
  for (std::size_t t = 0; t < model.tensors().size(); ++t) model.set_exists(static_cast<int>(t), false);
  for (int const tensor : family.required_tensors()) model.set_exists(tensor, true);
  for (int const tensor : family.optional_tensors()) model.set_exists(tensor, true);
}

}  // namespace reshard
