// A model map, and the layout expressions in it. What a map inherits from itself is what it says
// already.

#include "core/layout/layout_expr.hpp"
#include "core/mapping/maps/map_file.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace reshard {
namespace {

void parse_layouts(MapFile const& map) {
  for (MapName const& name : map.stored)
    for (MapEntry const& entry : name.entries)
      for (std::string const& text : {entry.is, entry.quantised, entry.view})
        fuzz::attempt(ErrorKind::usage, [&] { return parse_layout(text); });
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  auto const map = fuzz::accepted(
      ErrorKind::usage, [&] { return parse_map_file(fuzz::text_of(data, size), "fuzz.toml"); });
  if (!map) return 0;
  parse_layouts(*map);
  MapFile const twice = inherited(*map, *map);
  FUZZ_EXPECT(twice.name == map->name && twice.axes.size() == map->axes.size() &&
              twice.macros.size() == map->macros.size());
  return 0;
}
