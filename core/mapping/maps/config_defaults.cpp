#include "core/mapping/maps/config_defaults.hpp"

#include <algorithm>
#include <map>

namespace reshard {
namespace {

/// Whether the object says something under a dotted key.
bool says(Json const& object, std::string_view key) {
  auto const dot = key.find('.');
  Json const* member = object.find(key.substr(0, dot));
  if (dot == std::string_view::npos || member == nullptr) return member != nullptr;
  return !member->is_null() && (member->members() == nullptr || says(*member, key.substr(dot + 1)));
}

void set(Json& object, std::string_view key, Json value) {
  auto const dot = key.find('.');
  std::string_view const name = key.substr(0, dot);
  if (dot == std::string_view::npos) {
    object.set(name, std::move(value));
    return;
  }
  Json const* known = object.find(name);
  Json inner = known == nullptr ? Json() : *known;
  set(inner, key.substr(dot + 1), std::move(value));
  object.set(name, std::move(inner));
}

}  // namespace

Json fact(Json const& facts, std::string_view key) {
  if (Json const* found = facts.find(key)) return *found;
  auto const dot = key.find('.');
  if (dot == std::string_view::npos) return {};
  Json const* inner = facts.find(key.substr(0, dot));
  return inner == nullptr ? Json() : fact(*inner, key.substr(dot + 1));
}

std::vector<std::string> words_of(std::string_view key) {
  std::vector<std::string> words;
  while (!key.empty()) {
    std::size_t const end = std::min(key.find('.'), key.size());
    words.emplace_back(key.substr(0, end));
    key.remove_prefix(std::min(end + 1, key.size()));
  }
  return words;
}

Json scoped_facts(Json const& facts, std::string const& member) {
  Json const* inner = &facts;
  Json::Object result = facts.members() == nullptr ? Json::Object() : *facts.members();
  std::map<std::string, std::size_t, std::less<>> place_of;
  for (auto const& [key, value] : result) place_of.emplace(key, place_of.size());
  for (std::string const& word : words_of(member)) {
    inner = inner->find(word);
    if (inner == nullptr || inner->members() == nullptr) return facts;
    for (auto const& [key, value] : *inner->members()) {
      auto const [known, added] = place_of.emplace(key, result.size());
      if (added)
        result.emplace_back(key, value);
      else
        result[known->second].second = value;
    }
  }
  if (inner == &facts) return facts;
  Json scoped(std::move(result));
  scoped.set("top", facts);
  return scoped;
}

Json completed_config(MapFile const& family, Json config) {
  if (family.defaults.empty() || config.members() == nullptr) return config;
  Json const facts = scoped_facts(config, family.facts);
  ExpressionScope scope;
  scope.absent_spreads = true;
  scope.key = [&facts](std::string_view key) { return std::optional<Json>(fact(facts, key)); };
  Json const found = family.facts.empty() ? Json() : fact(config, family.facts);
  bool const inside = found.members() != nullptr;
  Json inner = inside ? found : config;
  for (NamedExpression const& item : family.defaults) {
    if (says(facts, item.name)) continue;
    if (Json value = item.expression.evaluate(scope); !value.is_null())
      set(inner, item.name, std::move(value));
  }
  if (!inside) return inner;
  set(config, family.facts, std::move(inner));
  return config;
}

}  // namespace reshard
