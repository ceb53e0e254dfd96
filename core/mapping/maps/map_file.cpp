#include "core/mapping/maps/map_file.hpp"

#include <algorithm>
#include <array>

#include "core/base/text/text.hpp"
#include "core/mapping/maps/map_reader.hpp"
#include "core/mapping/maps/toml_keys.hpp"

namespace reshard {
namespace {

class Loader : MapReader {
 public:
  explicit Loader(std::string_view file_name) : MapReader(file_name) { map_.name = file_name; }

  MapFile load(std::string_view text) {
    if (std::size_t const parts = longest_key(text); parts > most_key_parts)
      fail(ErrorKind::usage, "{}: a key has {} parts, at most {} are read. Correct it.", map_.name,
           parts, most_key_parts);
    toml::table root;
    try {
      root = toml::parse(text, std::string_view(map_.name));
    } catch (toml::parse_error const& error) {
      fail(ErrorKind::usage, "{}:{}:{}: {}. Correct the TOML, then run again.", map_.name,
           error.source().begin.line, error.source().begin.column, error.description());
    }
    for (auto const& [key, node] : written_order(root)) section(key, *node);
    return std::move(map_);
  }

 private:
  /// Leaves of nested tables: groups have no meaning.
  void flatten(toml::node const& node, std::vector<NamedExpression>& into) const {
    for (auto const& [key, member] : written_order(table(node, "this section"))) {
      if (member->is_table())
        flatten(*member, into);
      else
        into.push_back({key, expression(*member)});
    }
  }

  void named(toml::node const& node, std::vector<NamedExpression>& into) const {
    for (auto const& [key, member] : written_order(table(node, "this section")))
      into.push_back({key, expression(*member)});
  }

  void section(std::string const& key, toml::node const& node) {
    if (key == "base") return append(map_.bases, texts(node, key));
    if (key == "facts") return set(map_.facts, text(node, key));
    if (key == "match") return match(node);
    if (key == "mesh") return set(map_.mesh, texts(node, key));
    if (key == "options") return options(node);
    if (key == "places") return named(node, map_.places);
    if (key == "let") return flatten(node, map_.let);
    if (key == "axes") return flatten(node, map_.axes);
    if (key == "sets") return sets(node);
    if (key == "present") return named(node, map_.present);
    if (key == "expected") return named(node, map_.expected);
    if (key == "own_args") return append(map_.own_args, texts(node, key));
    if (key == "rules") return rules(node);
    if (key == "tensors") return tensors(node);
    if (key == "names") return macros(node);
    if (key == "stored") return stored("", table(node, "[stored]"));
    if (key == "drop") return append(map_.drop, texts(node, "drop"));
    if (key == "keep") return append(map_.keep, texts(node, "keep"));
    if (key == "kept") return kept(node);
    if (key == "registration") return set(map_.registration, texts(node, key));
    if (key == "buffers") return append(map_.buffers, texts(node, key));
    if (key == "quant") return quant(node);
    if (key == "adapter") return adapter(node);
    if (key == "args") return members(node, map_.args);
    if (key == "config") return members(node, map_.config);
    if (key == "neutral") return members(node, map_.neutral);
    if (key == "defaults") return members(node, map_.defaults);
    if (key == "kept_members") return append(map_.kept_members, texts(node, key));
    for (auto const& [list, into] : {std::pair("function_args", &map_.function_args),
                                     std::pair("layout_args", &map_.layout_args),
                                     std::pair("structure_args", &map_.structure_args),
                                     std::pair("training_args", &map_.training_args),
                                     std::pair("model_words", &map_.model_words),
                                     std::pair("full_precision", &map_.full_precision),
                                     std::pair("f32_beside_f16", &map_.f32_beside_f16)})
      if (key == list) return append(*into, texts(node, key));
    static std::array<std::string, 35> const known = {"base",
                                                      "facts",
                                                      "match",
                                                      "mesh",
                                                      "options",
                                                      "places",
                                                      "let",
                                                      "axes",
                                                      "sets",
                                                      "present",
                                                      "expected",
                                                      "own_args",
                                                      "rules",
                                                      "tensors",
                                                      "names",
                                                      "stored",
                                                      "drop",
                                                      "keep",
                                                      "args",
                                                      "config",
                                                      "quant",
                                                      "neutral",
                                                      "defaults",
                                                      "kept_members",
                                                      "function_args",
                                                      "layout_args",
                                                      "structure_args",
                                                      "training_args",
                                                      "model_words",
                                                      "registration",
                                                      "buffers",
                                                      "kept",
                                                      "adapter",
                                                      "full_precision",
                                                      "f32_beside_f16"};
    std::string const near = nearest(key, known);
    mistake(node, fmt::format("'{}' is not a section of a map.{} Known: {}.", key,
                              near.empty() ? "" : " Did you mean '" + near + "'?",
                              listed(known, known.size())));
  }

  template <class Value>
  static void set(Value& to, Value from) {
    to = std::move(from);
  }

  /// Members of args or config.json: `false` takes an inherited one away.
  void members(toml::node const& node, std::vector<NamedExpression>& into) const {
    for (auto const& [key, member] : written_order(table(node, "this section"))) {
      bool const away = member->is_boolean() && !member->as_boolean()->get();
      into.push_back({key, away ? Expression() : expression(*member)});
    }
  }

  static void append(std::vector<std::string>& to, std::vector<std::string> from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }

  void quant(toml::node const& node) {
    for (auto const& [name, member] : written_order(table(node, "quant")))
      map_.quant.push_back(read_quant(*this, name, *member));
  }

  void kept(toml::node const& node) {
    for (auto const& [name, members] : written_order(table(node, "kept"))) {
      MapKept trainer{.name = name, .names = {}, .drop = {}, .place = place(*members)};
      for (auto const& [key, member] : written_order(table(*members, "the names of a trainer"))) {
        if (key == "root")
          trainer.root = text(*member, key);
        else if (key == "drop")
          append(trainer.drop, texts(*member, key));
        else
          trainer.names.push_back(kept_name(key, *member));
      }
      map_.kept.push_back(std::move(trainer));
    }
  }

  MapKeptName kept_name(std::string const& pattern, toml::node const& node) const {
    MapKeptName result{pattern, {}, false};
    if (node.is_boolean()) {
      result.own = flag(node, "own tensors");
      if (!result.own) mistake(node, "names of Hugging Face are needed here, or true");
      return result;
    }
    result.family = texts(node, "names of Hugging Face");
    auto const stars = [](std::string const& text) { return std::ranges::count(text, '*'); };
    for (std::string const& other : result.family)
      if (stars(pattern) > 1 || stars(other) != stars(pattern))
        mistake(node, fmt::format("'{}' and '{}' need one '*' each, or none", pattern, other));
    return result;
  }

  void adapter(toml::node const& node) {
    for (auto const& [name, member] : written_order(table(node, "adapter")))
      map_.adapters.push_back(read_adapter(*this, name, *member));
  }

  void match(toml::node const& node) {
    for (auto const& [key, member] : written_order(table(node, "match"))) {
      if (key == "model_type")
        map_.model_types = texts(*member, "model_type");
      else if (key == "args")
        map_.match_args = expression(*member);
      else if (key == "config")
        map_.match_config = expression(*member);
      else
        mistake(*member,
                fmt::format("'{}' is not a key of match. Known: model_type, args, config.", key));
    }
  }

  /// An option's text is a value, not an expression.
  void options(toml::node const& node) {
    for (auto const& [key, member] : written_order(table(node, "options"))) {
      std::string const value =
          member->is_string() ? "'" + text(*member, "an option") + "'" : std::string();
      map_.options.push_back(
          {key, value.empty() ? expression(*member) : Expression::parse(value, place(*member))});
    }
  }

  void sets(toml::node const& node) {
    for (auto const& [axis, members] : written_order(table(node, "sets")))
      for (auto const& [key, member] : written_order(table(*members, "the sets of an axis")))
        map_.sets.push_back({axis + "." + key, expression(*member)});
  }

  void rules(toml::node const& node) {
    for (auto const& [mesh, list] : written_order(table(node, "rules"))) {
      auto const* array = list->as_array();
      if (array == nullptr) mistake(*list, "a rule is a list of axes");
      for (auto const& item : *array) map_.rules.push_back(rule(mesh, item));
    }
  }

  AxisRule rule(std::string const& mesh, toml::node const& node) const {
    AxisRule rule;
    rule.mesh = mesh;
    rule.place = place(node);
    if (node.is_string()) {
      rule.axis = text(node, "an axis");
      return rule;
    }
    for (auto const& [key, member] : written_order(table(node, "a rule"))) {
      if (key == "axis")
        rule.axis = text(*member, "axis");
      else if (key == "uneven" && text(*member, "uneven") == "cut")
        rule.cut_rows = true;
      else if (key == "pad")
        rule.pad = expression(*member);
      else if (key == "divides")
        rule.divides = expression(*member);
      else
        mistake(
            *member,
            fmt::format("'{}' is not a key of a rule here. Known: axis, uneven = \"cut\", divides, "
                        "pad.",
                        key));
    }
    return rule;
  }

  void tensors(toml::node const& node) {
    for (auto const& [front, list] : written_order(table(node, "tensors")))
      for (std::string const& line : texts(*list, "a tensor")) {
        auto const colon = line.find(':');
        if (colon == std::string::npos)
          mistake(*list, fmt::format("'{}': a tensor is written 'name: axes'", line));
        map_.tensors.push_back(
            {line.substr(0, colon), front + " " + line.substr(colon + 1), place(*list)});
      }
  }

  void macros(toml::node const& node) {
    for (auto const& [key, member] : written_order(table(node, "names"))) {
      MapMacro macro{key, {}, place(*member)};
      if (auto const* array = member->as_array()) {
        for (auto const& item : *array) macro.choices.push_back(choice(item));
      } else {
        macro.choices.push_back(choice(*member));
      }
      map_.macros.push_back(std::move(macro));
    }
  }

  MacroChoice choice(toml::node const& node) const {
    MacroChoice choice;
    if (node.is_string()) {
      choice.text = text(node, "text");
      return choice;
    }
    for (auto const& [key, member] : written_order(table(node, "a name"))) {
      if (key == "in")
        choice.in = text(*member, "in");
      else if (key == "when")
        choice.when = expression(*member);
      else if (key == "text")
        choice.text = text(*member, "text");
      else
        mistake(*member, fmt::format("'{}' is not a key of a name. Known: in, when, text.", key));
    }
    return choice;
  }

  void stored(std::string const& prefix, toml::table const& entries) {
    for (auto const& [key, member] : written_order(entries)) {
      std::string const name = prefix + key;
      auto const* members = member->as_table();
      if (members != nullptr && !members->contains("is")) {
        stored(name, *members);
        continue;
      }
      MapName item{name, {}, place(*member)};
      if (auto const* array = member->as_array()) {
        for (auto const& one : *array) item.entries.push_back(entry(one));
      } else if (!member->is_boolean() || member->as_boolean()->get()) {
        item.entries.push_back(entry(*member));
      }
      map_.stored.push_back(std::move(item));
    }
  }

  MapEntry entry(toml::node const& node) const {
    MapEntry entry;
    entry.place = place(node);
    if (node.is_string()) {
      entry.is = text(node, "an entry");
      return entry;
    }
    for (auto const& [key, member] : written_order(table(node, "an entry")))
      entry_key(entry, key, *member);
    if (entry.is.empty()) mistake(node, "an entry needs 'is'");
    return entry;
  }

  void entry_key(MapEntry& entry, std::string const& key, toml::node const& node) const {
    if (key == "is")
      entry.is = text(node, key);
    else if (key == "or")
      entry.or_names = texts(node, key);
    else if (key == "when")
      entry.when = expression(node);
    else if (key == "in")
      entry.in = text(node, key);
    else if (key == "at")
      entry.at = texts(node, key);
    else if (key == "copy")
      entry.copy = expression(node);
    else if (key == "whole")
      entry.whole = texts(node, key);
    else if (key == "optional")
      optional(entry, node);
    else if (key == "quantised")
      entry.quantised = text(node, key);
    else if (key == "view")
      entry.view = text(node, key);
    else if (key == "cast")
      entry.cast = text(node, key);
    else if (key == "add")
      entry.add = expression(node);
    else if (key == "apart")
      apart(entry, node);
    else
      mistake(
          node,
          fmt::format(
              "'{}' is not a key of an entry. Known: is, or, when, in, at, copy, whole, optional, "
              "quantised, view, cast, add, apart.",
              key));
  }

  void optional(MapEntry& entry, toml::node const& node) const {
    entry.optional = node.is_boolean() ? flag(node, "optional") : true;
    if (!node.is_boolean()) entry.optional_when = expression(node);
  }

  void apart(MapEntry& entry, toml::node const& node) const {
    for (auto const& [key, member] : written_order(table(node, "apart"))) {
      if (key == "when")
        entry.apart_when = expression(*member);
      else if (key == "as")
        entry.apart_as = texts(*member, "as");
      else
        mistake(*member, fmt::format("'{}' is not a key of apart. Known: when, as.", key));
    }
  }

  MapFile map_;
};

}  // namespace

std::vector<std::string> mesh_axes(MapFile const& map) {
  std::vector<std::string> axes = map.mesh;
  for (AxisRule const& rule : map.rules)
    if (std::ranges::find(axes, rule.mesh) == axes.end()) axes.push_back(rule.mesh);
  return axes;
}

std::string mesh_axis_of(MapFile const& map, std::string_view axis) {
  auto const rule = std::ranges::find(map.rules, axis, &AxisRule::axis);
  return rule == map.rules.end() ? std::string() : rule->mesh;
}

std::string pipeline_axis(MapFile const& map) {
  for (AxisRule const& rule : map.rules)
    for (NamedExpression const& place : map.places)
      if (place.name == rule.axis) return rule.mesh;
  return {};
}

MapFile parse_map_file(std::string_view text, std::string_view file_name) {
  return Loader(file_name).load(text);
}

}  // namespace reshard
