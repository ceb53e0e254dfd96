#include "core/mapping/sides/side_name_maker.hpp"

#include <algorithm>
#include <utility>

namespace reshard {
namespace {

constexpr int deepest_macro = 8;

using Use = SideVariable::Use;

/// The uses noted so far; they are reset.
std::vector<Use> taken_uses(std::vector<SideVariable> const& variables) {
  std::vector<Use> uses;
  for (SideVariable const& variable : variables)
    uses.push_back(std::exchange(variable.use, Use::none));
  return uses;
}

}  // namespace

std::optional<std::string> NameMaker::make(NameTemplate const& name,
                                           std::vector<SideVariable> const& variables,
                                           PipelineChunk const* chunk, std::string const& where,
                                           int depth) const {
  if (depth > deepest_macro)
    fail(ErrorKind::usage, "{}: macros nested deeper than {}. Break the cycle.", where,
         deepest_macro);
  std::string result;
  for (auto const& segment : name.segments()) {
    result += segment.literal;
    if (segment.macro >= 0) {
      std::optional<std::string> const inner =
          macro(static_cast<std::size_t>(segment.macro), variables, chunk, where, depth);
      if (!inner) return std::nullopt;
      result += *inner;
    } else if (!segment.expression.empty()) {
      if (!append_field(result, segment, variables, chunk, where)) return std::nullopt;
    }
  }
  return result;
}

std::vector<Run> const& NameMaker::place_runs(std::string_view place, PipelineChunk const& chunk,
                                              std::string const& where) {
  if (place == "decoder") return chunk.decoder;
  if (place == "mtp") return chunk.mtp;
  fail(ErrorKind::usage, "{}: '{}' is not a place of a pipeline chunk. Known: decoder, mtp.", where,
       place);
}

/// The value of a field; what it asks for, it shows.
Json NameMaker::field(NameTemplate::Segment const& segment,
                      std::vector<SideVariable> const& variables) const {
  std::string_view const single = segment.expression.single_key();
  for (SideVariable const& variable : variables) {
    if (model_.axes()[variable.axis].name != single) continue;
    variable.use = Use::shown;
    return Json(variable.value);
  }
  std::vector<Use> const before = taken_uses(variables);
  Json value = segment.expression.evaluate(scope_.with(&variables));
  for (std::size_t i = 0; i < variables.size(); ++i)
    variables[i].use = variables[i].use == Use::none ? before[i] : Use::shown;
  return value;
}

bool NameMaker::append_field(std::string& result, NameTemplate::Segment const& segment,
                             std::vector<SideVariable> const& variables, PipelineChunk const* chunk,
                             std::string const& where) const {
  Json const value = field(segment, variables);
  if (auto const* text = value.text()) {
    result += *text;
    return true;
  }
  auto const* number = value.integer();
  if (number == nullptr)
    fail(ErrorKind::usage, "{}: the field '{}' of a name is {}, a number or a string is needed.",
         where, segment.expression.text(), value.dump());
  Index shown = *number;
  if (!segment.place.empty() && chunk != nullptr) {
    shown = position_of(place_runs(segment.place, *chunk, where), *number);
    if (shown < 0) return false;
  }
  shown = shown * segment.stride + segment.first;
  fmt::format_to(std::back_inserter(result), "{}", shown);
  return true;
}

std::optional<std::string> NameMaker::macro(std::size_t macro,
                                            std::vector<SideVariable> const& variables,
                                            PipelineChunk const* chunk, std::string const& where,
                                            int depth) const {
  auto const& choices = map_.macros[macro].choices;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (!choices[i].in.empty() && !member(choices[i].in, variables)) continue;
    if (!choices[i].when.empty() && !holds(macro, i, variables)) continue;
    return make(macros_[macro].texts[i], variables, chunk, where, depth + 1);
  }
  fail(ErrorKind::usage,
       "{}: no alternative of the name '{}' applies here. Add a last alternative without a "
       "condition.",
       where, map_.macros[macro].name);
}

/// Whether the condition of a choice holds.
bool NameMaker::holds(std::size_t macro, std::size_t choice,
                      std::vector<SideVariable> const& variables) const {
  if (auto const known = settled_.find({macro, choice}); known != settled_.end())
    return known->second;
  std::vector<Use> const before = taken_uses(variables);
  bool const result = map_.macros[macro].choices[choice].when.holds(scope_.with(&variables));
  bool const settled =
      std::all_of(variables.begin(), variables.end(),
                  [](SideVariable const& variable) { return variable.use == Use::none; });
  if (settled) settled_[{macro, choice}] = result;
  for (std::size_t i = 0; i < variables.size(); ++i)
    variables[i].use = std::max(variables[i].use, before[i]);
  return result;
}

bool NameMaker::member(std::string const& set, std::vector<SideVariable> const& variables) const {
  std::string_view const axis = std::string_view(set).substr(0, set.find('.'));
  for (SideVariable const& variable : variables) {
    if (model_.axes()[variable.axis].name != axis) continue;
    variable.use = std::max(variable.use, Use::asked);
    return model_.in_set(set, variable.value);
  }
  return false;
}

}  // namespace reshard
