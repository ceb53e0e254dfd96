#include "stages/plan/config/args_meaning.hpp"

#include <algorithm>
#include <vector>

#include "core/base/text/text.hpp"
#include "core/mapping/model.hpp"
#include "stages/plan/config/config_members.hpp"
#include "stages/plan/config/neutral_members.hpp"

namespace reshard {
namespace {

bool fits_one(std::vector<std::string> const& patterns, std::string const& name) {
  return std::ranges::any_of(patterns,
                             [&](std::string const& one) { return matches_glob(one, name); });
}

bool says_something(Json const& value) {
  if (auto const* flag = value.boolean()) return *flag;
  if (auto const* integer = value.integer()) return *integer != 0;
  if (auto const* real = value.real()) return *real != 0;
  if (auto const* text = value.text()) return !text->empty();
  if (auto const* items = value.items()) return !items->empty();
  return value.members() != nullptr && !value.members()->empty();
}

}  // namespace

void refuse_other_rows(MapFile const& core, Json const& args, std::string const& place) {
  if (args.members() == nullptr || core.layout_args.empty()) return;
  bool const stated = std::ranges::any_of(core.layout_args, [&](std::string const& name) {
    Json const* value = args.find(name);
    return value != nullptr && says_something(*value);
  });
  if (!stated) return;
  Model const model(core, core, {args, "args"});
  NeutralMembers const neutral(core, core, model);
  for (std::string const& name : core.layout_args) {
    Json const* value = args.find(name);
    if (value == nullptr || !says_something(*value) || neutral.neutral("args." + name, *value))
      continue;
    fail(ErrorKind::source,
         "{}: args.{} = {}, so rows of the first projections of experts lie in another order than "
         "gate and then up, and no map describes it. Load the checkpoint with the program that "
         "trained it, and save it without this argument.",
         place, name, value->dump());
  }
}

std::string unknown_args_warning(MapFile const& core, MapFile const* family, Json const& args) {
  if (args.members() == nullptr || core.model_words.empty()) return "";
  std::vector<std::string> unknown;
  for (auto const& [name, value] : *args.members()) {
    if (!says_something(value) || !fits_one(core.model_words, name)) continue;
    bool const known =
        std::ranges::any_of(
            std::vector{&core.function_args, &core.layout_args, &core.structure_args,
                        &core.own_args},
            [&, &arg = name](auto const* list) { return std::ranges::count(*list, arg) > 0; }) ||
        fits_one(core.training_args, name) ||
        (family != nullptr && std::ranges::count(family->args, name, &NamedExpression::name) > 0);
    if (!known) unknown.push_back(fmt::format("{} = {}", name, shown_value(value)));
  }
  if (unknown.empty()) return "";
  return fmt::format(
      "the checkpoint's args have {}, which {} not known here: if the model computes something else "
      "by {}, the target's config.json does not say so. Compare it with that of the model",
      listed(unknown, 10), unknown.size() == 1 ? "is" : "are", unknown.size() == 1 ? "it" : "them");
}

}  // namespace reshard
