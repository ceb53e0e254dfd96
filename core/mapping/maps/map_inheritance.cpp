#include <algorithm>

#include "core/base/text/text.hpp"
#include "core/mapping/maps/map_file.hpp"

namespace reshard {
namespace {

/// An item of the derived map takes the place of the base's of that name, or follows behind. What
/// one map says twice stays twice: that is for others to refuse, as in a map without a base.
template <typename Item>
void unite(std::vector<Item>& base, std::vector<Item>&& derived) {
  std::size_t const inherited = base.size();
  for (Item& item : derived) {
    auto const end = base.begin() + static_cast<std::ptrdiff_t>(inherited);
    auto const known =
        std::find_if(base.begin(), end, [&](Item const& other) { return other.name == item.name; });
    if (known == end)
      base.push_back(std::move(item));
    else
      *known = std::move(item);
  }
}

bool taken_away(NamedExpression const& item) { return item.expression.empty(); }
bool taken_away(MapName const& name) { return name.entries.empty(); }

/// Removes every item of the base whose name matches a pattern that the derived map takes away.
template <typename Item>
void take_away(std::vector<Item>& base, std::vector<Item> const& derived) {
  for (Item const& item : derived)
    if (taken_away(item) && item.name.find('*') != std::string::npos)
      std::erase_if(base, [&](Item const& other) { return matches_glob(item.name, other.name); });
}

template <typename Item>
void append(std::vector<Item>& base, std::vector<Item>&& derived) {
  base.insert(base.end(), std::make_move_iterator(derived.begin()),
              std::make_move_iterator(derived.end()));
}

}  // namespace

MapFile inherited(MapFile base, MapFile derived) {
  MapFile result = std::move(base);
  result.name = std::move(derived.name);
  result.model_types = std::move(derived.model_types);
  result.match_args = std::move(derived.match_args);
  result.match_config = std::move(derived.match_config);
  if (!derived.facts.empty()) result.facts = std::move(derived.facts);
  for (auto const list : {&MapFile::args, &MapFile::config, &MapFile::defaults})
    take_away(result.*list, derived.*list);
  take_away(result.stored, derived.stored);
  for (auto const list : {&MapFile::options, &MapFile::places, &MapFile::let, &MapFile::axes,
                          &MapFile::sets, &MapFile::present, &MapFile::expected, &MapFile::args,
                          &MapFile::config, &MapFile::neutral, &MapFile::defaults})
    unite(result.*list, std::move(derived.*list));
  unite(result.tensors, std::move(derived.tensors));
  unite(result.macros, std::move(derived.macros));
  unite(result.stored, std::move(derived.stored));
  unite(result.quant, std::move(derived.quant));
  unite(result.kept, std::move(derived.kept));
  unite(result.adapters, std::move(derived.adapters));
  append(result.own_args, std::move(derived.own_args));
  for (std::string& axis : derived.mesh)
    if (std::ranges::find(result.mesh, axis) == result.mesh.end())
      result.mesh.push_back(std::move(axis));
  append(result.rules, std::move(derived.rules));
  append(result.drop, std::move(derived.drop));
  append(result.keep, std::move(derived.keep));
  if (!derived.registration.empty()) result.registration = std::move(derived.registration);
  append(result.buffers, std::move(derived.buffers));
  append(result.full_precision, std::move(derived.full_precision));
  append(result.f32_beside_f16, std::move(derived.f32_beside_f16));
  append(result.kept_members, std::move(derived.kept_members));
  for (auto const list : {&MapFile::function_args, &MapFile::layout_args, &MapFile::structure_args,
                          &MapFile::training_args, &MapFile::model_words})
    append(result.*list, std::move(derived.*list));
  return result;
}

}  // namespace reshard
