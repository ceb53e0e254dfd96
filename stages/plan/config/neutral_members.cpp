#include "stages/plan/config/neutral_members.hpp"

#include <algorithm>

#include "core/base/text/text.hpp"

namespace reshard {
namespace {

bool says_nothing(Json const& value) {
  if (value.is_null()) return true;
  if (auto const* flag = value.boolean()) return !*flag;
  if (auto const* text = value.text()) return text->empty();
  if (auto const* items = value.items()) return items->empty();
  return value.members() != nullptr && value.members()->empty();
}

bool fits(std::string_view pattern, std::string_view key) {
  return pattern.find('*') == std::string_view::npos ? pattern == key : matches_glob(pattern, key);
}

}  // namespace

NamedExpression const* NeutralMembers::entry(std::string_view key) const {
  for (MapFile const* map : {&family_, &core_})
    for (NamedExpression const& entry : map->neutral)
      if (fits(entry.name, key)) return &entry;
  return nullptr;
}

bool NeutralMembers::always(std::string_view key) const {
  NamedExpression const* found = entry(key);
  return found != nullptr && found->expression.text() == "true";
}

bool NeutralMembers::kept(std::string_view key) const {
  auto const fitting = [&](std::string const& pattern) { return fits(pattern, key); };
  return std::ranges::any_of(family_.kept_members, fitting) ||
         std::ranges::any_of(core_.kept_members, fitting);
}

bool NeutralMembers::neutral(std::string_view key, Json const& value) const {
  if (value.is_null()) return true;
  NamedExpression const* found = entry(key);
  if (found == nullptr) return says_nothing(value) && !says_something_by_default(key);
  if (found->expression.empty()) return false;
  ExpressionScope scope;
  scope.absent_spreads = true;
  scope.key = [&](std::string_view word) {
    return std::optional<Json>(word == "it" ? value : model_.value_or_set(word));
  };
  return found->expression.holds(scope);
}

bool NeutralMembers::says_something_by_default(std::string_view key) const {
  auto const found = std::ranges::find_if(
      family_.defaults, [&](NamedExpression const& item) { return item.name == key; });
  if (found == family_.defaults.end()) return false;
  ExpressionScope scope;
  scope.absent_spreads = true;
  scope.key = [&](std::string_view word) { return std::optional<Json>(model_.value(word)); };
  return !says_nothing(found->expression.evaluate(scope));
}

}  // namespace reshard
