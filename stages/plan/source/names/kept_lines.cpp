#include "stages/plan/source/names/kept_lines.hpp"

#include <algorithm>

namespace reshard {

void KeptLines::add(std::vector<Line> const& of_core, std::vector<Line> const& of_family,
                    std::vector<Index> const& shape) {
  std::string const tensor = fmt::format("kept.t{}", tensors_.size());
  std::string axes;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::string const axis = fmt::format("kept{}_{}", d, shape[d]);
    if (std::none_of(axes_.begin(), axes_.end(),
                     [&](NamedExpression const& known) { return known.name == axis; }))
      axes_.push_back({axis, Expression::parse(fmt::format("{}", shape[d]), place_)});
    axes += " " + axis;
  }
  tensors_.push_back({tensor, axes, place_});
  for (Line const& line : of_core) core_.push_back(stored(line, tensor + ":" + axes));
  for (Line const& line : of_family) family_.push_back(stored(line, tensor + ":" + axes));
}

void KeptLines::into(MapChoice& maps) const {
  add_to(maps.core, core_);
  maps.core.tensors.insert(maps.core.tensors.end(), tensors_.begin(), tensors_.end());
  if (maps.family) add_to(*maps.family, family_);
}

MapName KeptLines::stored(Line const& line, std::string const& is) const {
  if (line.name.find_first_of("{}") != std::string::npos)
    fail(
        ErrorKind::source,
        "'{}': a stored name with braces cannot be kept. Set model.unmapped = \"drop\" to leave such tensors out.",
        line.name);
  MapEntry entry;
  entry.is = is;
  entry.when = line.when;
  entry.at = {"E"};
  entry.as_it_is = true;
  entry.place = place_;
  return {line.name, {std::move(entry)}, place_};
}

void KeptLines::add_to(MapFile& map, std::vector<MapName> const& lines) const {
  map.stored.insert(map.stored.end(), lines.begin(), lines.end());
  map.axes.insert(map.axes.end(), axes_.begin(), axes_.end());
}

}  // namespace reshard
