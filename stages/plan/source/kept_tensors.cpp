#include "stages/plan/source/kept_tensors.hpp"

#include <algorithm>
#include <map>

#include "core/base/text.hpp"
#include "stages/plan/source/source_names.hpp"

namespace reshard {
namespace {

using Shapes = std::map<std::string, std::vector<Index>>;

bool matches(std::vector<std::string> const& patterns, std::string const& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](std::string const& pattern) { return matches_glob(pattern, name); });
}

Shapes unmapped(std::vector<std::string> const& patterns, Checkpoint const& source,
                StoredView const& view) {
  Shapes result;
  each_stored(source, view, [&](std::string const& name, std::vector<Index> const& shape) {
    if (matches(patterns, name)) result.emplace(name, shape);
  });
  return result;
}

/// A stored tensor with an axis of its own for each dimension; all maps of the job get the same
/// lines.
class KeptLines {
 public:
  explicit KeptLines(std::string place) : place_(std::move(place)) {}

  void add(std::string const& name, std::vector<Index> const& shape) {
    if (name.find_first_of("{}") != std::string::npos)
      fail(
          ErrorKind::source,
          "'{}': a stored name with braces cannot be kept. Set model.unmapped = \"drop\" to leave such tensors out.",
          name);
    std::string const tensor = fmt::format("kept.t{}", stored_.size());
    std::string axes;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      std::string const axis = fmt::format("kept{}_{}", d, shape[d]);
      if (std::none_of(axes_.begin(), axes_.end(),
                       [&](NamedExpression const& known) { return known.name == axis; }))
        axes_.push_back({axis, Expression::parse(fmt::format("{}", shape[d]), place_)});
      axes += " " + axis;
    }
    tensors_.push_back({tensor, axes, place_});
    MapEntry entry;
    entry.is = tensor + ":" + axes;
    entry.at = {"E"};
    entry.as_it_is = true;
    entry.place = place_;
    stored_.push_back({name, {std::move(entry)}, place_});
  }

  void into(MapFile& map, bool with_tensors) const {
    map.stored.insert(map.stored.end(), stored_.begin(), stored_.end());
    map.axes.insert(map.axes.end(), axes_.begin(), axes_.end());
    if (with_tensors) map.tensors.insert(map.tensors.end(), tensors_.begin(), tensors_.end());
  }

 private:
  std::string place_;
  std::vector<NamedExpression> axes_;
  std::vector<MapTensor> tensors_;
  std::vector<MapName> stored_;
};

}  // namespace

void settle_unmapped(MapChoice& maps, Checkpoint const& source, StoredView const& view,
                     TargetRequest const& request, std::vector<std::string>& warnings) {
  if (!maps.family || maps.family->keep.empty()) return;
  std::vector<std::string> const& patterns = maps.family->keep;
  Shapes const found = unmapped(patterns, source, view);
  if (found.empty()) return;
  if (request.unmapped == Unmapped::refuse)
    fail(ErrorKind::usage,
         "[model] unmapped: {} stored tensors such as '{}' are not part of what {} describes (its "
         "`keep`: {}). Set model.unmapped = \"keep\" to copy them byte for byte, or \"drop\" to "
         "leave them out.",
         found.size(), found.begin()->first, maps.family->name, listed(patterns));
  if (request.unmapped == Unmapped::drop) {
    warnings.push_back(
        fmt::format("{} stored tensors such as '{}' are left out (model.unmapped = \"drop\")",
                    found.size(), found.begin()->first));
    for (MapFile* map : {&maps.core, &*maps.family})
      map->drop.insert(map->drop.end(), patterns.begin(), patterns.end());
    return;
  }
  if (format_of(request.format).target().names == NameOwner::logical)
    fail(
        ErrorKind::usage,
        "[model] unmapped = \"keep\": '{}' has no logical name, which every tensor of an HDF5 container needs here. Set it to \"drop\", or "
        "model.map = \"none\" to keep all stored names.",
        found.begin()->first);
  KeptLines lines(maps.family->name);
  for (auto const& [name, shape] : found) lines.add(name, shape);
  lines.into(maps.core, true);
  lines.into(*maps.family, false);
}

void add_kept(MapFile const& from, MapFile& to) {
  for (MapName const& name : from.stored)
    if (name.entries.front().as_it_is) to.stored.push_back(name);
}

void settle_unread(MapChoice const& maps, StoredView const& view, bool megatron,
                   TargetRequest const& request, std::vector<std::string>& warnings) {
  if (view.unread.empty()) return;
  std::vector<std::string> names = view.unread;
  std::sort(names.begin(), names.end());
  bool const of_model =
      maps.family && std::any_of(names.begin(), names.end(), [&](std::string const& name) {
        return matches(maps.family->keep, name);
      });
  std::string const note = unread_note(names, request.source_prefix);
  if ((megatron || of_model) && request.unmapped != Unmapped::drop)
    fail(ErrorKind::usage,
         "[source] prefix: {}: they would be lost, and model.unmapped = \"keep\" cannot copy them, "
         "because the target's names for them are not known. Set model.unmapped = \"drop\" to "
         "leave them out.",
         note);
  warnings.push_back(note + ": they are left out");
}

}  // namespace reshard
