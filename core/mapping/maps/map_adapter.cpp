#include "core/mapping/maps/map_reader.hpp"

namespace reshard {
namespace {

std::vector<std::pair<std::string, std::string>> words(MapReader const& reader,
                                                       toml::node const& node) {
  std::vector<std::pair<std::string, std::string>> result;
  for (auto const& [key, member] : written_order(reader.table(node, "parts")))
    result.emplace_back(key, reader.text(*member, key));
  return result;
}

}  // namespace

MapAdapter read_adapter(MapReader const& reader, std::string const& name, toml::node const& node) {
  MapAdapter result;
  result.name = name;
  result.place = reader.place(node);
  for (auto const& [key, member] : written_order(reader.table(node, "an adapter"))) {
    if (key == "family")
      result.family = reader.flag(*member, key);
    else if (key == "prefix")
      result.prefix = reader.text(*member, key);
    else if (key == "a")
      result.a = reader.text(*member, key);
    else if (key == "b")
      result.b = reader.text(*member, key);
    else if (key == "cut")
      result.cut = reader.text(*member, key);
    else if (key == "parts")
      result.parts = words(reader, *member);
    else if (key == "packed")
      result.packed = reader.flag(*member, key);
    else if (key == "except")
      result.except = reader.texts(*member, key);
    else if (key == "apart")
      result.apart = reader.texts(*member, key);
    else if (key == "joined")
      result.joined = reader.texts(*member, key);
    else if (key == "halved")
      result.halved = reader.texts(*member, key);
    else
      reader.mistake(
          *member,
          fmt::format("'{}' is not a key of an adapter. Known: family, prefix, a, b, cut, parts, "
                      "packed, except, apart, joined, halved.",
                      key));
  }
  if (result.a.empty() || result.b.empty() || result.a == result.b)
    reader.mistake(node, "an adapter needs `a` and `b`, the names of its two matrices");
  return result;
}

}  // namespace reshard
