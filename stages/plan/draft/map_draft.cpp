#include "stages/plan/draft/map_draft.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/mapping/maps/map_removal.hpp"
#include "core/mapping/sides/side.hpp"
#include "stages/plan/check/map_syntax.hpp"
#include "stages/plan/draft/fact_words.hpp"
#include "stages/plan/draft/name_match.hpp"

namespace reshard {
namespace {

constexpr double change_costs = 0.4;  // of a line against a name that fits by itself
constexpr double absent_costs = 0.5;
constexpr double left_costs = 1.0;
constexpr std::size_t most_listed = 40;
constexpr std::uint64_t largest_map_bytes = 1 << 20;

std::string toml_text(std::string_view text) { return json_quoted(text); }

std::string shape_text(std::optional<std::vector<Index>> const& shape) {
  return shape ? fmt::format("  [{}]", fmt::join(*shape, ", ")) : std::string();
}

/// Names and groups that a map expects of a model.
struct Expected {
  std::vector<ExpectedGroup> groups;
  std::vector<std::string> names;
  std::set<std::string> may_lack;  ///< keys of groups, and names, that a model may lack in any case
};

Expected expected_by(MapFile const& map, MapFile const& core, Json const& config,
                     std::set<std::string> const& stored) {
  Model model(map, core, {config, "config.json"});
  SideOptions options;
  options.has = [&stored](std::string_view pattern) {
    if (pattern.find_first_of("*?") == std::string_view::npos)
      return stored.contains(std::string(pattern));
    return std::any_of(stored.begin(), stored.end(),
                       [&](std::string const& name) { return matches_glob(pattern, name); });
  };
  Side const side(model, map, options);
  apply_family(model, side);
  Expected expected;
  std::vector<TensorId> const optional = side.optional_tensors();
  auto const may_lack = [&](std::uint32_t entry) {
    return std::ranges::all_of(side.tensors(entry), [&](TensorId tensor) {
      return std::ranges::find(optional, tensor) != optional.end();
    });
  };
  std::set<std::pair<std::uint32_t, std::string>> seen;
  for (StoredName const& name : side.names(nullptr)) {
    expected.names.push_back(name.name);
    if (may_lack(name.entry)) {
      expected.may_lack.insert(name.name);
      expected.may_lack.insert(side.written_name(name.entry));
    }
    std::string text = numbers_hidden(name.name);
    if (!seen.emplace(name.entry, text).second) continue;
    expected.groups.push_back({side.written_name(name.entry), side.written_layout(name.entry),
                               std::move(text), side.shape(name)});
  }
  return expected;
}

/// A map that could be the base, and what the draft would change in it.
struct Candidate {
  MapFile const* base = nullptr;
  std::string facts;  ///< another member of config.json for the facts; "" for the base's
  std::vector<OtherWord> words;
  NameMatch match;
  double value = 0;
  std::size_t unstated = 0;  ///< facts that the base asks for and nothing states
};

class Drafter {
 public:
  explicit Drafter(DraftRequest const& request)
      : request_(request), groups_(group_names(request.tensors)) {
    for (DraftTensor const& tensor : request.tensors) stored_.insert(tensor.name);
    Json const* type = request.config.find("model_type");
    if (type != nullptr && type->text() != nullptr) type_ = without_controls(*type->text());
  }

  MapDraft run() {
    core_ = request_.library.choose("mcore", {}, {}, false).core;
    if (request_.base.empty()) {
      maps_ = request_.library.families();
    } else {
      maps_.push_back(*request_.library.choose(request_.base, {}, {}, true).family);
    }
    std::optional<Candidate> best;
    std::string why;
    for (MapFile const& map : maps_) {
      try {
        Candidate candidate = judged(map);
        if (!best || nearer(candidate, *best)) best = std::move(candidate);
      } catch (Error const& error) {
        if (error.kind() != ErrorKind::usage && error.kind() != ErrorKind::source) throw;
        why = error.sentence();
      }
    }
    if (!best || best->match.equal + best->match.changes.size() == 0)
      fail(ErrorKind::usage,
           "no map of the map folder can describe this config.json{}. Name the members of "
           "config.json for layers, hidden size and heads in a map of your own "
           "(docs/adding-a-model.md).",
           maps_.size() == 1 ? " (" + why + ")" : std::string());
    return written(*best);
  }

 private:
  /// Of two that fit as well, the one that can make a config.json; then the one that inherits
  /// through fewer maps, which is the more general family; then the one with fewer open facts.
  bool nearer(Candidate const& a, Candidate const& b) const {
    if (a.value != b.value) return a.value > b.value;
    if (a.base->config.empty() != b.base->config.empty()) return b.base->config.empty();
    std::size_t const depth_a = depth(a.base->name);
    std::size_t const depth_b = depth(b.base->name);
    return depth_a != depth_b ? depth_a < depth_b : a.unstated < b.unstated;
  }

  /// Through how many maps one inherits; 0 where its file is none of the map folders.
  std::size_t depth(std::string const& name) const {
    for (std::filesystem::path const& folder : request_.library.folders()) {
      std::filesystem::path const path = folder / name;
      if (!sees_file(path)) continue;
      std::size_t result = 0;
      for (std::string const& base :
           parse_map_file(read_text_file(path, largest_map_bytes), name).bases)
        result = std::max(result, 1 + depth(base + ".toml"));
      return result;
    }
    return 0;
  }

  Candidate judged(MapFile const& map) const {
    Candidate candidate;
    candidate.base = &map;
    if (map.facts.empty()) candidate.facts = text_member(request_.config);
    std::string const& member = candidate.facts.empty() ? map.facts : candidate.facts;
    Json const facts = scoped_facts(request_.config, member);
    std::vector<std::string> const asked = check_map_syntax(map, core_).facts;
    candidate.words = other_words(asked, facts, counted_layers(request_.tensors));
    for (std::string const& name : asked)
      candidate.unstated += fact(facts, name).is_null() ? 1U : 0U;
    candidate.unstated -= candidate.words.size();
    MapFile const changed = derived(map, head(candidate));
    Expected const expected = expected_by(changed, core_, request_.config, stored_);
    if (expected.groups.empty())
      fail(ErrorKind::usage,
           "{}: does not describe any tensor of this config.json. Name "
           "another map",
           map.name);
    std::vector<NameMacro> macros;
    for (MapMacro const& macro : map.macros)
      if (macro.choices.size() == 1 && macro.choices.front().in.empty() &&
          macro.choices.front().when.empty())
        macros.push_back({macro.name, macro.choices.front().text});
    std::vector<NameGroup> wanted;
    for (NameGroup const& group : groups_)
      if (!set_aside(map, group.text)) wanted.push_back(group);
    candidate.match = match_names(expected.groups, macros, wanted);
    std::erase_if(candidate.match.absent,
                  [&](std::string const& key) { return expected.may_lack.contains(key); });
    for (std::size_t& left : candidate.match.left) {
      auto const at = std::find_if(groups_.begin(), groups_.end(), [&](NameGroup const& group) {
        return group.text == wanted[left].text;
      });
      left = static_cast<std::size_t>(at - groups_.begin());
    }
    NameMatch const& match = candidate.match;
    candidate.value = static_cast<double>(match.equal) -
                      change_costs * static_cast<double>(match.reshaped.size()) +
                      (1 - change_costs) * static_cast<double>(match.changes.size()) -
                      absent_costs * static_cast<double>(match.absent.size()) -
                      left_costs * static_cast<double>(match.left.size());
    return candidate;
  }

  /// Whether the base drops or keeps such names.
  static bool set_aside(MapFile const& map, std::string const& text) {
    auto const fits = [&](std::string const& pattern) { return matches_glob(pattern, text); };
    return std::any_of(map.drop.begin(), map.drop.end(), fits) ||
           std::any_of(map.keep.begin(), map.keep.end(), fits);
  }

  static MapFile derived(MapFile const& base, std::string const& text) {
    MapFile draft = parse_map_file(text, "draft.toml");
    draft.bases.clear();
    return without_removed(inherited(base, std::move(draft)));
  }

  static std::string stem(MapFile const& map) {
    return std::filesystem::path(map.name).stem().string();
  }

  /// Base, match, and other words for facts: what is needed to evaluate the model.
  std::string head(Candidate const& candidate) const {
    MapFile const& base = *candidate.base;
    std::string text = fmt::format("base = {}\n", toml_text(stem(base)));
    if (!type_.empty()) text += fmt::format("match = {{ model_type = [{}] }}\n", toml_text(type_));
    if (!candidate.facts.empty()) text += fmt::format("facts = {}\n", toml_text(candidate.facts));
    text += table("let", base.let, candidate, "");
    text += table("axes", base.axes, candidate, "of_facts");
    text += table("sets", base.sets, candidate, "");
    return text;
  }

  /// The definitions of the base that ask for facts under other words, written anew.
  static std::string table(std::string_view name, std::vector<NamedExpression> const& definitions,
                           Candidate const& candidate, std::string_view group) {
    std::string lines;
    std::string inner;  // the axis of the sets before
    for (NamedExpression const& definition : definitions) {
      std::string const& old = definition.expression.text();
      std::string const text = with_other_words(old, candidate.words);
      if (text == old) continue;
      std::string key = definition.name;
      if (std::size_t const dot = key.find('.'); name == "sets" && dot != std::string::npos) {
        if (key.substr(0, dot) != inner) lines += fmt::format("[sets.{}]\n", key.substr(0, dot));
        inner = key.substr(0, dot);
        key = key.substr(dot + 1);
      }
      lines += fmt::format("{} = {}\n", key, toml_text(text));
    }
    if (lines.empty() || name == "sets") return lines;
    return group.empty() ? fmt::format("[{}]\n{}", name, lines)
                         : fmt::format("[{}.{}]\n{}", name, group, lines);
  }

  std::string names(Candidate const& candidate) const {
    std::string text;
    if (!candidate.match.macros.empty()) text += "\n[names]\n";
    for (NameMacro const& macro : candidate.match.macros)
      text += fmt::format("{} = {}\n", macro.name, toml_text(macro.text));
    if (!candidate.match.changes.empty() || !candidate.match.absent.empty()) text += "\n[stored]\n";
    for (NameChange const& change : candidate.match.changes) {
      text += fmt::format("{} = {}  # {}\n", toml_text(change.key), toml_text(change.is),
                          change.reason);
      for (std::string const& key : change.replaced)
        if (key != change.key) text += fmt::format("{} = false\n", toml_text(key));
    }
    for (std::string const& key : candidate.match.absent)
      text += fmt::format("{} = false  # not stored\n", toml_text(key));
    return text;
  }

  /// The name of config.json's family, and its facts, for targets that are made from args.
  std::string config(Candidate const& candidate) const {
    MapFile const& base = *candidate.base;
    std::string text = table("args", base.args, candidate, "");
    std::string defaults;
    for (OtherWord const& word : candidate.words)
      if (std::any_of(base.defaults.begin(), base.defaults.end(),
                      [&](NamedExpression const& item) { return item.name == word.fact; }))
        defaults += fmt::format("{} = false\n", word.fact);
    if (!defaults.empty()) text += "\n[defaults]\n" + defaults;
    if (base.config.empty()) return text;
    text += "\n[config]\n";
    Json const* classes = request_.config.find("architectures");
    if (classes != nullptr && classes->items() != nullptr && !classes->items()->empty() &&
        classes->items()->front().text() != nullptr)
      text += fmt::format("architectures = {}\n",
                          toml_text(fmt::format("list('{}')", *classes->items()->front().text())));
    if (!type_.empty()) text += fmt::format("model_type = {}\n", toml_text("'" + type_ + "'"));
    for (OtherWord const& word : candidate.words)
      for (NamedExpression const& item : base.config)
        if (item.name == word.fact && !item.expression.empty())
          text += fmt::format("{} = {}\n{} = false\n", word.word, toml_text(item.expression.text()),
                              word.fact);
    return text;
  }

  MapDraft written(Candidate const& candidate) const {
    MapDraft draft;
    draft.base = candidate.base->name;
    draft.model_type = type_;
    std::string const body = head(candidate) + names(candidate) + config(candidate);
    MapFile const map = derived(*candidate.base, body);
    Expected const expected = expected_by(map, core_, request_.config, stored_);
    std::set<std::string> const known(expected.names.begin(), expected.names.end());
    std::vector<DraftTensor> left;
    for (DraftTensor const& tensor : request_.tensors) {
      if (known.contains(tensor.name)) {
        ++draft.described;
      } else if (!set_aside(map, tensor.name)) {
        left.push_back(tensor);
      }
    }
    draft.left = group_names(left);
    for (std::string const& name : known)
      if (!stored_.contains(name) && !expected.may_lack.contains(name))
        draft.lacking.push_back(name);
    draft.toml = comment(candidate, draft) + body + remarks(candidate, draft);
    return draft;
  }

  std::string comment(Candidate const& candidate, MapDraft const& draft) const {
    return fmt::format(
        "# {}: a draft, from {}. It describes {} of {}. Read each line, then run\n"
        "# reshard check-map on it, and compare what the model computes (docs/adding-a-model.md, "
        "4 to 7).\n",
        type_.empty() ? "A model" : type_, candidate.base->name, draft.described,
        counted(request_.tensors.size(), "stored tensor"));
  }

  static std::string remarks(Candidate const& candidate, MapDraft const& draft) {
    std::string text;
    if (!candidate.match.reshaped.empty())
      text += "\n# Stored in another shape than the map expects:\n";
    for (std::string const& line : candidate.match.reshaped) text += "#   " + line + "\n";
    if (!draft.left.empty())
      text +=
          "\n# Not described yet. Give each an entry under [stored], or list it under drop (every program "
          "computes it)\n# or keep (copied as it is), in front of the first table:\n";
    for (NameGroup const& group : draft.left)
      text += fmt::format("#   {}{}  ×{}\n", group.text, shape_text(group.shape), group.count);
    if (!draft.lacking.empty()) text += "\n# Expected by the draft and not stored:\n";
    for (std::size_t i = 0; i < std::min(draft.lacking.size(), most_listed); ++i)
      text += "#   " + draft.lacking[i] + "\n";
    return text;
  }

  DraftRequest const& request_;
  std::vector<NameGroup> groups_;
  std::set<std::string> stored_;
  std::string type_;
  MapFile core_;
  std::vector<MapFile> maps_;
};

}  // namespace

MapDraft draft_map(DraftRequest const& request) { return Drafter(request).run(); }

}  // namespace reshard
