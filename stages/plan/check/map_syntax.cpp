#include "stages/plan/check/map_syntax.hpp"

#include <algorithm>
#include <set>

#include "core/base/dtype.hpp"
#include "core/base/text/text.hpp"
#include "core/layout/layout_expr.hpp"
#include "core/mapping/sides/side_entry.hpp"

namespace reshard {
namespace {

using Words = std::set<std::string, std::less<>>;

/// " Did you mean 'attn.q'?" or nothing.
std::string suggestion(std::string const& word, Words const& known) {
  std::vector<std::string> const candidates(known.begin(), known.end());
  std::string const near = nearest(word, candidates);
  return near.empty() ? "" : " Did you mean '" + near + "'?";
}

/// Names that the expressions of a map may use without asking the facts.
Words defined_in(MapFile const& map, MapFile const& core) {
  Words words{"local"};
  for (MapFile const* file : {&core, &map})
    for (std::string& axis : mesh_axes(*file)) words.insert(std::move(axis));
  for (auto const* list : {&map.let, &map.axes, &map.sets, &map.options})
    for (NamedExpression const& item : *list) words.insert(item.name);
  return words;
}

class SyntaxCheck {
 public:
  SyntaxCheck(MapFile const& map, MapFile const& core)
      : map_(map), defined_(defined_in(map, core)) {
    for (MapFile const* file : {&core, &map}) {
      for (MapTensor const& tensor : file->tensors) tensors_.insert(tensor.name);
      for (NamedExpression const& axis : file->axes) axes_.insert(axis.name);
      for (NamedExpression const& set : file->sets) sets_.insert(set.name);
      for (NamedExpression const& place : file->places) places_.insert(place.name);
    }
    // The parts of quantised weights are declared by their scheme.
    for (MapFile const* file : {&core, &map})
      for (MapQuant const& quant : file->quant)
        for (MapQuantPart const& part : quant.parts) parts_.insert(quant.name + "." + part.name);
  }

  MapWords run() {
    compile_macros(map_);
    for (MapMacro const& macro : map_.macros)
      for (MacroChoice const& choice : macro.choices) set_known(choice.in, macro.place);
    for (MapTensor const& tensor : map_.tensors) axes_known(tensor);
    for (AxisRule const& rule : map_.rules)
      if (!axes_.contains(rule.axis) && !places_.contains(rule.axis))
        fail(ErrorKind::usage, "{}: there is no axis '{}' to cut.{}", rule.place, rule.axis,
             suggestion(rule.axis, axes_));
    for (MapName const& name : map_.stored) {
      ++result_.names;
      for (MapEntry const& entry : name.entries) check(name, entry);
    }
    result_.tensors.assign(named_.begin(), named_.end());
    find_facts();
    return std::move(result_);
  }

 private:
  void check(MapName const& name, MapEntry const& entry) {
    ++result_.entries;
    NameTemplate::parse(name.name, map_.macros, entry.place);
    for (std::string const& alias : entry.or_names)
      NameTemplate::parse(alias, map_.macros, entry.place);
    set_known(entry.in, entry.place);
    if (!entry.cast.empty() && !dtype_from_name(entry.cast))
      fail(ErrorKind::usage,
           "{}: cast = \"{}\" is not a dtype. Use the names of safetensors: F32, BF16, …",
           entry.place, entry.cast);
    LayoutExpr const expr = parsed(entry.is, entry.place);
    if (!entry.view.empty()) parsed(entry.view, entry.place);
    for (std::string const& tensor : expr.tensors()) {
      tensor_known(tensor, entry.place);
      for (LayoutExpr::Digit const& digit : expr.digits_of(tensor))
        if (!axes_.contains(digit.axis))
          fail(ErrorKind::usage, "{}: '{}': there is no axis '{}'.{}", entry.place, entry.is,
               digit.axis, suggestion(digit.axis, axes_));
    }
  }

  static LayoutExpr parsed(std::string const& text, std::string const& place) {
    try {
      return parse_layout(text);
    } catch (Error const& error) {
      throw error.in(place);
    }
  }

  void tensor_known(std::string const& tensor, std::string const& place) {
    named_.insert(tensor);
    if (tensors_.contains(tensor)) return;
    for (std::string const& part : parts_)
      if (tensor.ends_with("." + part) &&
          tensors_.contains(tensor.substr(0, tensor.size() - part.size() - 1)))
        return;
    fail(
        ErrorKind::usage,
        "{}: no logical tensor is called '{}'.{} Use a name of mcore.toml, or declare yours in [tensors].",
        place, tensor, suggestion(tensor, tensors_));
  }

  void set_known(std::string const& set, std::string const& place) const {
    if (set.empty() || sets_.contains(set)) return;
    fail(ErrorKind::usage, "{}: there is no set '{}'.{} Define it in [sets].", place, set,
         suggestion(set, sets_));
  }

  void axes_known(MapTensor const& tensor) const {
    for (std::size_t at = 0; at < tensor.axes.size();) {
      std::size_t const begin = tensor.axes.find_first_not_of(' ', at);
      if (begin == std::string::npos) return;
      at = std::min(tensor.axes.find(' ', begin), tensor.axes.size());
      std::string const word = tensor.axes.substr(begin, at - begin);
      std::string const axis = word.substr(0, word.find_first_of("./"));
      if (!axes_.contains(axis))
        fail(ErrorKind::usage, "{}: '{}': there is no axis '{}'.{}", tensor.place, tensor.name,
             axis, suggestion(axis, axes_));
      if (word.find('.') != std::string::npos) set_known(word, tensor.place);
    }
  }

  /// Keys that no definition of the map explains are asked of config.json. [config] asks args, and
  /// is left out.
  void find_facts() {
    Words facts;
    auto const ask = [&](Expression const& expression, std::string_view itself) {
      if (expression.empty()) return;
      for (std::string const& key : expression.keys())
        if (key == itself || !defined_.contains(key))
          if (!axes_.contains(key.substr(0, key.find('.')))) facts.insert(key);
    };
    for (auto const* list : {&map_.let, &map_.axes, &map_.args})
      for (NamedExpression const& item : *list)
        ask(item.expression, list == &map_.args ? "" : item.name);
    for (NamedExpression const& set : map_.sets) ask(set.expression, "");
    for (MapMacro const& macro : map_.macros)
      for (MacroChoice const& choice : macro.choices) ask(choice.when, "");
    for (MapName const& name : map_.stored)
      for (MapEntry const& entry : name.entries)
        for (Expression const* expression : {&entry.when, &entry.copy, &entry.apart_when})
          ask(*expression, "");
    result_.facts.assign(facts.begin(), facts.end());
  }

  MapFile const& map_;
  Words defined_;
  Words tensors_;
  Words axes_;
  Words sets_;
  Words places_;
  Words parts_;
  Words named_;
  MapWords result_;
};

}  // namespace

MapWords check_map_syntax(MapFile const& map, MapFile const& core) {
  return SyntaxCheck(map, core).run();
}

}  // namespace reshard
