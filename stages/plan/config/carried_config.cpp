#include "stages/plan/config/carried_config.hpp"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "core/base/text/text.hpp"
#include "stages/plan/config/config_members.hpp"
#include "stages/plan/config/neutral_members.hpp"
#include "stages/plan/source/facts/model_facts.hpp"

namespace reshard {
namespace {

std::optional<double> number_of(Json const& value) {
  if (auto const* integer = value.integer()) return static_cast<double>(*integer);
  if (auto const* real = value.real()) return *real;
  if (auto const* flag = value.boolean()) return *flag ? 1 : 0;
  return std::nullopt;
}

/// Numbers by their value, null as false, and a rule for layers that is true for all of them as 1.
bool alike(Json const& a, Json const& b) {
  auto const plain = [](Json const& value) {
    auto const* items = value.items();
    bool const ones = items != nullptr && !items->empty() &&
                      std::all_of(items->begin(), items->end(),
                                  [](Json const& item) { return number_of(item) == 1.0; });
    return value.is_null() ? Json(0) : ones ? Json(1) : value;
  };
  Json const x = plain(a);
  Json const y = plain(b);
  auto const m = number_of(x);
  auto const n = number_of(y);
  if (m && n) return *m == *n;
  if (x.items() == nullptr || y.items() == nullptr || x.items()->size() != y.items()->size())
    return x == y;
  return std::equal(x.items()->begin(), x.items()->end(), y.items()->begin(), alike);
}

Json member_or_null(Json const& object, std::string_view key) {
  Json const* found = object.find(key);
  return found == nullptr ? Json() : *found;
}

/// Leaves by their dotted key.
void add_leaves(Json const& value, std::string const& key, std::map<std::string, Json>& leaves) {
  if (value.members() == nullptr) {
    if (!value.is_null()) leaves[key] = value;
    return;
  }
  for (auto const& [name, inner] : *value.members())
    add_leaves(inner, key.empty() ? name : key + "." + name, leaves);
}

std::map<std::string, Json> leaves_of(Json const& config) {
  std::map<std::string, Json> leaves;
  add_leaves(config, "", leaves);
  return leaves;
}

/// Where a member of [config] is in a config.json: rope's are elsewhere since transformers 5.
std::vector<std::string> place_of(Json const& config, std::string const& facts,
                                  std::string const& key) {
  Json const inner = facts.empty() ? Json() : fact(config, facts);
  std::vector<std::string> path;
  if (inner.members() != nullptr) path = words_of(facts);
  Json const& object = path.empty() ? config : inner;
  constexpr std::string_view scaling = "rope_scaling.";
  bool const gathered = object.find("rope_parameters") != nullptr;
  std::string name = key;
  bool const moved = key == "rope_theta" || key == "partial_rotary_factor";
  if (gathered && moved &&
      (object.find(key) == nullptr || object.find("rope_parameters")->find(key) != nullptr))
    name = "rope_parameters." + key;
  if (gathered && key.starts_with(scaling))
    name = "rope_parameters." +
           (key == "rope_scaling.type" ? "rope_type" : key.substr(scaling.size()));
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) {
    path.push_back(name.substr(0, dot));
    name = name.substr(dot + 1);
  }
  path.push_back(name);
  return path;
}

Json at_path(Json const& config, std::vector<std::string> const& path) {
  Json const* value = &config;
  for (std::string const& name : path) {
    value = value->find(name);
    if (value == nullptr) return {};
  }
  return *value;
}

/// Whether a number and a list name the same layers: which have experts is "every Nth from the
/// first on", a window or linear attention "all but every Nth".
bool is_same_pattern(std::string const& name, Json const& number, Json const& list) {
  if (number.integer() == nullptr || *number.integer() < 1 || list.items() == nullptr) return false;
  bool const experts = name == "moe_layer_freq";
  if (!experts && name != "window_attn_skip_freq" && name != "linear_attention_freq") return false;
  Index const every = *number.integer();
  Index layer = 0;
  return std::ranges::all_of(*list.items(), [&](Json const& one) {
    Index const expected = experts ? Index(layer % every == 0) : Index((layer + 1) % every != 0);
    ++layer;
    return one.integer() != nullptr && *one.integer() == expected;
  });
}

/// Two checkpoints' args, each with what is neutral beside its others.
class ArgsComparison {
 public:
  ArgsComparison(MapFile const& core, Json const& first, Json const& second)
      : first_(first),
        second_(second),
        model_a_(core, core, {first, "args"}),
        model_b_(core, core, {second, "args"}),
        neutral_a_(core, core, model_a_),
        neutral_b_(core, core, model_b_) {}

  void add(std::string const& name, std::vector<ArgDifference>& result) const {
    Json const a = member_or_null(first_, name);
    Json const b = member_or_null(second_, name);
    std::string const key = "args." + name;
    if (!alike(a, b) && !is_same_pattern(name, a, b) && !is_same_pattern(name, b, a) &&
        !(neutral_a_.neutral(key, a) && neutral_b_.neutral(key, b)))
      result.push_back({name, a, b});
  }

 private:
  Json const& first_;
  Json const& second_;
  Model model_a_;
  Model model_b_;
  NeutralMembers neutral_a_;
  NeutralMembers neutral_b_;
};

/// Sizes that the files tell, not args alone.
void take_sizes(Json& args, Json const& from) {
  for (char const* size : {"vocab_size", "mtp_num_layers"})
    if (Json value = member_or_null(from, size);
        !value.is_null() || std::string_view(size) == "mtp_num_layers")
      args.set(size, std::move(value));
}

class Reviser {
 public:
  Reviser(MapFile const& family, MapFile const& core, Json const& config, std::string const& folder)
      : family_(family),
        core_(core),
        config_(config),
        completed_(completed_config(family, config)),
        folder_(folder),
        members_(family, core, config) {}

  ConfigRevision run(Json const& args) {
    Json const then = with_args_of(config_, args);
    Json now = args;
    take_sizes(now, then);
    std::vector<ArgDifference> const differing = differing_args(family_, core_, then, now);
    if (!differing.empty() && family_.config.empty()) refuse(differing.front());
    if (!differing.empty()) {
      before_ = leaves_of(made_of(then));
      change(leaves_of(made_of(now)));
    }
    note_untold(now);
    return std::move(result_);
  }

 private:
  Json made_of(Json const& args) const {
    return config_from_args(family_, Model(core_, core_, {args, "args"}));
  }

  Json with_args_of(Json const& config, Json args) const {
    Json const made = args_from_config(family_, core_, config);
    for (auto const& [key, value] : *made.members()) args.set(key, value);
    return args;
  }

  [[noreturn]] void refuse(ArgDifference const& arg) const {
    fail(ErrorKind::source,
         "{}: its config.json gives args.{} = {}, the checkpoint has {}. {} cannot make a "
         "config.json from args: give target.reference, a folder whose config.json describes what "
         "was trained.",
         folder_, arg.name, shown_value(arg.first), shown_value(arg.second), family_.name);
  }

  bool counts(std::vector<std::string> const& path, Json const& value) const {
    std::vector<std::string> const facts = words_of(family_.facts);
    bool const inside =
        path.size() > facts.size() && std::equal(facts.begin(), facts.end(), path.begin());
    auto const first = path.begin() + (inside ? std::ssize(facts) : 0);
    return !members_.neutral(fmt::format("{}", fmt::join(first, path.end(), ".")), value);
  }

  void change(std::map<std::string, Json> const& after) {
    std::map<std::string, std::pair<Json, Json>> both;
    for (auto const& [key, value] : before_) both[key].first = value;
    for (auto const& [key, value] : after) both[key].second = value;
    for (auto const& [key, values] : both) {
      std::vector<std::string> path = place_of(config_, family_.facts, key);
      if (alike(values.first, values.second) ||
          !(counts(path, values.first) || counts(path, values.second)))
        continue;
      Json const old = at_path(completed_, path);
      Json value = values.second;
      if (value.is_null() && path.back() == "rope_type") value = "default";
      if (alike(old, value)) continue;
      result_.warnings.push_back(fmt::format(
          "{}: {} was {}, the checkpoint's args give {}. The target's config.json has the latter",
          folder_, fmt::join(path, "."), shown_value(old), shown_value(value)));
      result_.changes.push_back(patch(std::move(path), std::move(value)));
    }
  }

  /// Takes a member away, or sets it to null where its absence would mean a value.
  huggingface::ConfigPatch patch(std::vector<std::string> path, Json value) const {
    if (!value.is_null()) return {std::move(path), std::move(value)};
    huggingface::ConfigPatch removal{path, std::nullopt};
    Json const without =
        completed_config(family_, huggingface::patched_config(config_, std::span(&removal, 1)));
    if (at_path(without, path).is_null()) return removal;
    return {std::move(path), Json()};
  }

  /// Args that are not those of the changed config.
  void note_untold(Json const& now) {
    Json again = with_args_of(huggingface::patched_config(config_, result_.changes), now);
    take_sizes(again, now);
    result_.untold = differing_args(family_, core_, again, now);
    for (ArgDifference& arg : untold_args(family_, core_, completed_, now))
      if (!makes_arg(family_, arg.name)) result_.untold.push_back(std::move(arg));
    for (ArgDifference const& arg : result_.untold)
      result_.warnings.push_back(fmt::format(
          "{}: its config.json gives args.{} = {}, the checkpoint has {}. This config.json is the "
          "target's as it is: give target.reference if the model has been changed since",
          folder_, arg.name, shown_value(arg.first), shown_value(arg.second)));
  }

  MapFile const& family_;
  MapFile const& core_;
  Json const& config_;
  Json completed_;
  std::string const& folder_;
  ConfigMembers members_;
  std::map<std::string, Json> before_;
  ConfigRevision result_;
};

}  // namespace

ConfigRevision revised_config(MapFile const& family, MapFile const& core, Json const& config,
                              Json const& args, std::string const& folder) {
  return Reviser(family, core, config, folder).run(args);
}

bool makes_arg(MapFile const& family, std::string const& arg) {
  return std::ranges::any_of(family.args,
                             [&](NamedExpression const& item) { return item.name == arg; });
}

Json args_from_config(MapFile const& family, MapFile const& core, Json const& config) {
  return Json(Json::Object(Model(family, core, {config, "config.json"}).evaluate(family.args)));
}

std::vector<ArgDifference> differing_args(MapFile const& family, MapFile const& core,
                                          Json const& first, Json const& second) {
  ArgsComparison const comparison(core, first, second);
  std::vector<ArgDifference> result;
  for (NamedExpression const& arg : family.args) comparison.add(arg.name, result);
  return result;
}

std::vector<ArgDifference> differing_function_args(MapFile const& core, Json const& first,
                                                   Json const& second) {
  ArgsComparison const comparison(core, first, second);
  std::vector<ArgDifference> result;
  for (std::string const& arg : core.function_args) comparison.add(arg, result);
  return result;
}

std::vector<ArgDifference> untold_args(MapFile const& family, MapFile const& core,
                                       Json const& config, Json const& args) {
  Json const told = args_from_config(family, core, config);
  // An argument that the family does not make may be a member of the same name.
  auto const member = [&](std::string const& arg) {
    return makes_arg(family, arg) ? Json() : at_path(config, place_of(config, family.facts, arg));
  };
  Json by_config = args;
  for (std::string const& arg : core.function_args) {
    Json const* const made = told.find(arg);
    by_config.set(arg, made != nullptr ? *made : member(arg));
  }
  ArgsComparison const comparison(core, by_config, args);
  std::vector<ArgDifference> result;
  for (std::string const& arg : core.function_args)
    if (args.find(arg) != nullptr) comparison.add(arg, result);
  return result;
}

std::string untold_warning(MapFile const& family, MapFile const& core, Json const& config,
                           Json const& args) {
  std::vector<std::string> untold;
  for (ArgDifference const& arg : untold_args(family, core, config, args))
    untold.push_back(fmt::format("{} = {}", arg.name, shown_value(arg.second)));
  if (untold.empty()) return "";
  return fmt::format(
      "config.json is made from the checkpoint's args, and it has no member for {}: the model "
      "that it describes computes something else. Give target.reference, the folder of a model "
      "whose config.json has it",
      listed(untold, 20));
}

std::vector<std::string> guessed_members(MapFile const& family, MapFile const& core,
                                         Json const& args, Json const& made) {
  ConfigMembers const members(family, core, made);
  std::map<std::string, Json> const leaves = leaves_of(made);
  std::vector<std::string> result;
  for (NamedExpression const& member : family.config) {
    auto const leaf = leaves.find(member.name);
    std::vector<std::string> const keys = member.expression.keys();
    auto const stated = [&](std::string const& key) {
      return args.find(key.substr(0, key.find('.'))) != nullptr;
    };
    auto const defined = [&](std::string const& key) {
      for (auto const* list : {&core.let, &core.axes, &core.sets})
        for (NamedExpression const& item : *list)
          if (item.name == key) return true;
      return false;
    };
    if (leaf == leaves.end() || keys.empty() || members.neutral(member.name, leaf->second))
      continue;
    if (std::none_of(keys.begin(), keys.end(),
                     [&](std::string const& key) { return stated(key) || defined(key); }))
      result.push_back(fmt::format("{} = {}", member.name, shown_value(leaf->second)));
  }
  return result;
}

}  // namespace reshard
