#include "core/mapping/sides/side_names.hpp"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include <fmt/ranges.h>

#include "core/base/range.hpp"

namespace reshard {
namespace {

using Use = SideVariable::Use;

// Sizes come from a checkpoint's facts: a model of this many layers or experts is a mistake, and
// going through them would not end.
constexpr Index most_indices = Index{1} << 20;
/// Names of one entry: ten times those of the largest model. Sizes come from the checkpoint's own
/// config.
constexpr Index most_names = Index{1} << 22;

/// Adds a run to a list that is mostly filled in ascending order.
void extend(std::vector<Run>& runs, Run const& run) {
  Run* const last = runs.empty() ? nullptr : &runs.back();
  if (last != nullptr && run.begin >= last->begin && run.end <= last->end) return;
  if (last != nullptr && run.begin == last->end)
    last->end = run.end;
  else
    runs.push_back(run);
}

}  // namespace

/// One stored name and all that was made under it.
struct SideNames::Merged {
  Made first;
  Index tuples = 0;  ///< how many combinations of indices made it
};

Index SideNames::tuples(Made const& made) {
  Index count = 1;
  for (std::vector<Run> const& runs : made.indices)
    count = checked_mul(count, extent(runs), ErrorKind::usage, made.stored.name);
  return count;
}

/// 0: not in this chunk; 1: the first place it is allowed at; 2: a later one, which holds a copy.
int SideNames::placed(SideEntry const& entry, PipelineChunk const* chunk) const {
  if (entry.written->at.empty() || chunk == nullptr) return 1;
  bool first = true;
  for (std::string const& place : entry.written->at) {
    if (at_place(entry, place, *chunk)) return first ? 1 : 2;
    first = false;
  }
  return 0;
}

bool SideNames::at_place(SideEntry const& entry, std::string const& place,
                         PipelineChunk const& chunk) const {
  if (place == "E") return chunk.embedding;
  if (place == "L") return chunk.head;
  if (place == "m") return !chunk.mtp.empty() && !chunk.embedding;
  auto const equals = place.find('=');
  if (equals == std::string::npos)
    fail(ErrorKind::usage, "{}: at = \"{}\" is not a place. Known: E, L, m, or decoder=NUMBER.",
         entry.written->place, place);
  Index const number = Expression::parse(place.substr(equals + 1), entry.written->place)
                           .integer(scope_.with(nullptr));
  return position_of(NameMaker::place_runs(place.substr(0, equals), chunk, entry.written->place),
                     number) >= 0;
}

bool SideNames::in_domain(SideEntry const& entry, AxisId axis, Index value) const {
  for (TensorId const tensor : entry.tensors)
    for (LogicalAxis const& logical : model_.tensor(tensor).axes)
      if (logical.axis == axis && !model_.in_set(logical.set, value)) return false;
  std::string const& in = entry.written->in;
  if (!in.empty() && std::string_view(in).substr(0, in.find('.')) == model_.axes()[axis].name)
    return model_.in_set(in, value);
  return true;
}

/// The indices of a name axis that an entry goes through.
std::vector<Run> SideNames::domain(SideEntry const& entry, AxisId axis, Index count) const {
  if (Index const most = std::max(count, model_.axes()[axis].size); most > most_indices)
    fail(ErrorKind::usage,
         "{}: names count axis '{}', which has {} indices; at most {} are allowed. Check the "
         "sizes in {}.",
         entry.written->place, model_.axes()[axis].name, most, most_indices, model_.origin());
  if (count != model_.axes()[axis].size) return {{0, count, false}};
  std::vector<Run> runs;
  for (Index i = 0; i < count; ++i) {
    if (!in_domain(entry, axis, i)) continue;
    if (!runs.empty() && runs.back().end == i)
      runs.back().end = i + 1;
    else
      runs.push_back({i, i + 1, false});
  }
  return runs;
}

void SideNames::make_leaf(Walk& walk) const {
  SideEntry const& entry = entries_[walk.entry];
  std::vector<Use> before;
  for (SideVariable const& variable : walk.variables)
    before.push_back(std::exchange(variable.use, Use::none));
  std::optional<std::string> name =
      maker_.make(entry.name, walk.variables, walk.chunk, entry.written->place);
  Made made;
  for (std::size_t i = 0; i < before.size(); ++i) {
    SideVariable const& variable = walk.variables[i];
    auto const& part = entry.name_axes[i].part;
    made.stored.positions.push_back(part ? variable.value / part->div : variable.value);
    if (options_.in_front) {
      made.shown.push_back(variable.use == Use::shown);
      made.indices.push_back({{variable.value, variable.value + 1, false}});
    }
    variable.use = std::max(variable.use, before[i]);
  }
  if (!name) return;
  check_parts(walk, *name);
  made.stored.name = std::move(*name);
  made.stored.entry = walk.entry;
  made.stored.copy = walk.copy;
  for (NameTemplate const& alias : entry.aliases)
    if (auto text = maker_.make(alias, walk.variables, walk.chunk, entry.written->place))
      made.stored.aliases.push_back(std::move(*text));
  walk.made.push_back(std::move(made));
}

/// Where the shape holds a part of an axis, the name is the same for all indices that differ only
/// there.
void SideNames::check_parts(Walk const& walk, std::string const& name) const {
  SideEntry const& entry = entries_[walk.entry];
  for (std::size_t i = 0; i < entry.name_axes.size(); ++i) {
    auto const& part = entry.name_axes[i].part;
    if (!part) continue;
    Axis const& axis = model_.axes()[entry.name_axes[i].axis];
    std::vector<SideVariable> others = walk.variables;
    Index const first = walk.variables[i].value;
    for (Index block = first; block < axis.size; block += part->mod)
      for (Index index = block; index < std::min(block + part->div, axis.size); ++index) {
        others[i].value = index;
        auto const other = maker_.make(entry.name, others, walk.chunk, entry.written->place);
        if (other && *other == name) continue;
        fail(
            ErrorKind::usage,
            "{}: '{}': the shape holds a part of axis '{}', so indices {} and {} are in one stored tensor, but their names are '{}' and '{}'. Count "
            "only the rest of the axis in the name.",
            entry.written->place, entry.expr.text, axis.name, first, index, name,
            other.value_or(""));
      }
  }
}

/// Before the first name is made.
void SideNames::check_count(SideEntry const& entry) const {
  Index names = 1;
  for (NameAxis const& counted : entry.name_axes) {
    Index const count =
        counted.part ? counted.part->count() : shares_.positions(entry, counted.axis);
    if (count <= most_names / std::max<Index>(names, 1)) {
      names *= count;
      continue;
    }
    fail(ErrorKind::usage,
         "{}: it makes more than {} names, {} for each '{}'. Check the sizes in {}.",
         entry.written->place, most_names, count, model_.axes()[counted.axis].name,
         model_.origin());
  }
}

void SideNames::enumerate(Walk& walk) const {
  SideEntry const& entry = entries_[walk.entry];
  std::size_t const level = walk.variables.size();
  if (level == entry.name_axes.size()) return make_leaf(walk);
  NameAxis const& counted = entry.name_axes[level];
  AxisId const axis = counted.axis;
  std::vector<Run> const indices =
      domain(entry, axis, counted.part ? counted.part->count() : shares_.positions(entry, axis));
  for (Run const& run : indices)
    for (Index i = run.begin; i < run.end; ++i) {
      std::size_t const first = walk.made.size();
      walk.variables.push_back({axis, counted.index(i)});
      if (level + 1 == entry.name_axes.size() || on_chunk(entry, walk)) enumerate(walk);
      bool const same_for_all = walk.variables.back().use == Use::none;
      walk.variables.pop_back();
      if (!options_.in_front || !same_for_all) continue;
      for (std::size_t m = first; m < walk.made.size(); ++m) walk.made[m].indices[level] = indices;
      return;
    }
}

/// Whether names under these first numbers are in the chunk at all: asks with the first index of
/// the other axes.
bool SideNames::on_chunk(SideEntry const& entry, Walk const& walk) const {
  if (walk.chunk == nullptr) return true;
  std::vector<SideVariable> probe = walk.variables;
  for (std::size_t i = walk.variables.size(); i < entry.name_axes.size(); ++i)
    probe.push_back({entry.name_axes[i].axis, 0});
  return maker_.make(entry.name, probe, walk.chunk, entry.written->place).has_value();
}

/// Adds the indices for which a name was made once more.
void SideNames::merge(Merged& merged, Made const& made) {
  merged.tuples = checked_add(merged.tuples, tuples(made), ErrorKind::usage, made.stored.name);
  Made& first = merged.first;
  for (std::size_t i = 0; i < made.indices.size(); ++i) {
    first.shown[i] = first.shown[i] || made.shown[i];
    for (Run const& run : made.indices[i]) extend(first.indices[i], run);
  }
  if (made.stored.aliases != first.stored.aliases) first.stored.aliases.clear();
}

/// Turns the name axes that the name does not tell apart into dimensions.
void SideNames::finish(Merged& merged) const {
  StoredName& stored = merged.first.stored;
  SideEntry const& entry = entries_[stored.entry];
  Index product = 1;
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < entry.name_axes.size(); ++i) {
    std::string const& axis = model_.axes()[entry.name_axes[i].axis].name;
    std::vector<Run> runs = united(std::move(merged.first.indices[i]));
    Index const count = extent(runs);
    product = checked_mul(product, count, ErrorKind::usage, stored.name);
    if (merged.first.shown[i] && count == 1) continue;
    if (!entry.name_axes[i].of_tensor)
      fail(
          ErrorKind::usage,
          "{}: '{}' is made for {} indices of '{}', which its tensors lack. Put {{{}}} into the name.",
          entry.written->place, stored.name, count, axis, axis);
    axes.push_back(axis);
    stored.positions[i] = runs.front().begin;
    stored.front.push_back({entry.name_axes[i].axis, std::move(runs)});
  }
  if (product != merged.tuples)
    fail(ErrorKind::usage,
         "{}: '{}' covers {} combinations of {}, which is not a full product ({}). Put one of "
         "these axes into the name.",
         entry.written->place, stored.name, merged.tuples, fmt::join(axes, ", "), product);
}

std::vector<StoredName> SideNames::names(PipelineChunk const* chunk) const {
  std::vector<Merged> all;
  std::unordered_map<std::string, std::size_t> known;  // name -> all
  for (std::uint32_t e = 0; e < entries_.size(); ++e) {
    SideEntry const& entry = entries_[e];
    if (!shares_.usable(entry)) continue;
    int const place = placed(entry, chunk);
    if (place == 0) continue;
    bool const further = !entry.written->copy.empty();
    if (further && !entry.written->copy.holds(scope_.with(nullptr))) continue;
    if (!entry.fault.empty())
      fail(
          ErrorKind::usage,
          "{}: {}. Quantised values cannot be stored like this: set model.quant = \"dequantise-bf16\", or keep the stored tensors as they are (model.map = \"none\") in a Hugging Face, DCP or HDF5 target.",
          entry.written->place, entry.fault);
    check_count(entry);
    Walk walk{e, chunk, further || place == 2, {}, {}};
    enumerate(walk);
    for (Made& made : walk.made) {
      auto const [found, is_new] = known.emplace(made.stored.name, all.size());
      if (is_new) {
        Index const count = tuples(made);
        all.push_back({std::move(made), count});
        continue;
      }
      Merged& other = all[found->second];
      if (entries_[other.first.stored.entry].group != entry.group)
        fail(ErrorKind::usage,
             "'{}' is made by {} and by {}. Limit one of them with `in` or `when`.",
             made.stored.name, map_.stored[entries_[other.first.stored.entry].group].place,
             entry.written->place);
      if (options_.in_front && other.first.stored.entry == e) merge(other, made);
    }
  }
  std::vector<StoredName> result;
  result.reserve(all.size());
  for (Merged& merged : all) {
    if (options_.in_front) finish(merged);
    result.push_back(std::move(merged.first.stored));
  }
  sort_by_layer(result);
  return result;
}

/// Layer by layer, as loaders go: what the map lists before the first entry with layers, the
/// layers, the rest.
void SideNames::sort_by_layer(std::vector<StoredName>& names) const {
  auto const layer =
      static_cast<AxisId>(model_.axes().find("layer"));  // -1 becomes a number that no axis has
  auto const layer_of = [&](StoredName const& name) -> Index {
    auto const& axes = entries_[name.entry].name_axes;
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (axes[i].axis == layer && axes[i].of_tensor) return name.positions[i];
    return -1;
  };
  std::uint32_t first_layered = static_cast<std::uint32_t>(entries_.size());
  for (StoredName const& name : names)
    if (layer_of(name) >= 0) first_layered = std::min(first_layered, name.entry);
  auto const place = [&](StoredName const& name) {
    Index const of_layer = layer_of(name);
    return of_layer >= 0                ? of_layer + 1
           : name.entry < first_layered ? 0
                                        : std::numeric_limits<Index>::max();
  };
  std::stable_sort(names.begin(), names.end(),
                   [&](StoredName const& a, StoredName const& b) { return place(a) < place(b); });
}

}  // namespace reshard
