#include "stages/plan/draft/name_match.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stages/plan/draft/layout_text.hpp"

namespace reshard {
namespace {

constexpr std::size_t least_votes = 2;  // of names for another prefix
constexpr std::size_t most_fused = 4;   // weights in one stored tensor
constexpr double least_alike = 0.2;     // words in common, of those of both names
constexpr int deepest = 8;              // macros in macros, as in maps

/// A key with its macros written out: `#` for each field, and which fields these are.
struct Written {
  std::string text;
  std::vector<std::string> fields;
};

class Macros {
 public:
  explicit Macros(std::span<NameMacro const> macros) {
    for (NameMacro const& macro : macros) texts_[macro.name] = macro.text;
  }
  void set(std::string const& name, std::string text) { texts_[name] = std::move(text); }
  std::map<std::string, std::string> const& texts() const { return texts_; }

  Written write(std::string_view key, int depth = 0) const {
    Written result;
    while (!key.empty()) {
      std::size_t const open = key.find('{');
      std::size_t const close = key.find('}', open == std::string_view::npos ? 0 : open);
      if (open == std::string_view::npos || close == std::string_view::npos) break;
      result.text += key.substr(0, open);
      std::string const word(key.substr(open + 1, close - open - 1));
      auto const macro = texts_.find(word);
      if (macro != texts_.end() && depth < deepest) {
        Written inner = write(macro->second, depth + 1);
        result.text += inner.text;
        result.fields.insert(result.fields.end(), inner.fields.begin(), inner.fields.end());
      } else {
        result.text += '#';
        result.fields.push_back("{" + word + "}");
      }
      key.remove_prefix(close + 1);
    }
    result.text += key;
    return result;
  }

  /// A group's text as a map writes it: the longest macro in front, fields for numbers.
  std::string key_of(std::string_view text, std::vector<std::string> const& fields,
                     std::string const& but = "") const {
    std::string best;
    Written front;
    for (auto const& [name, content] : texts_) {
      if (name == but || uses(content, but)) continue;
      Written const written = write(content);
      if (written.text.size() > front.text.size() && text.starts_with(written.text) &&
          written.fields.size() <= fields.size() &&
          std::equal(written.fields.begin(), written.fields.end(), fields.begin())) {
        best = "{" + name + "}";
        front = written;
      }
    }
    std::size_t next = front.fields.size();
    for (char const letter : text.substr(front.text.size())) {
      if (letter == '#' && next < fields.size()) {
        best += fields[next++];
      } else {
        best += letter;
      }
    }
    return best;
  }

 private:
  bool uses(std::string const& text, std::string const& name) const {
    return !name.empty() && text.find("{" + name + "}") != std::string::npos;
  }
  std::map<std::string, std::string> texts_;
};

std::set<std::string> words_of(std::string_view text) {
  std::set<std::string> words;
  std::string word;
  for (char const letter : text) {
    if (letter != '.' && letter != '_' && letter != '#') {
      word += letter;
    } else if (!word.empty()) {
      words.insert(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.insert(word);
  return words;
}

/// Words in both names, of those in either.
double alike(std::string_view a, std::string_view b) {
  std::set<std::string> const left = words_of(a);
  std::set<std::string> const right = words_of(b);
  std::size_t both = 0;
  for (std::string const& word : left) both += right.contains(word) ? 1U : 0U;
  std::size_t const all = left.size() + right.size() - both;
  return all == 0 ? 0 : static_cast<double>(both) / static_cast<double>(all);
}

std::string_view last_word(std::string_view text) { return text.substr(text.rfind('.') + 1); }

std::string_view module_of(std::string_view text) {
  std::size_t const dot = text.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : text.substr(0, dot);
}

std::string_view parent_of(std::string_view text) { return module_of(module_of(text)); }

auto numbers(std::string_view text) { return std::count(text.begin(), text.end(), '#'); }

class Matcher {
 public:
  Matcher(std::span<ExpectedGroup const> expected, std::span<NameMacro const> macros,
          std::span<NameGroup const> found)
      : expected_(expected),
        found_(found),
        macros_(macros),
        written_(expected.size()),
        of_expected_(expected.size(), false),
        of_found_(found.size(), false) {
    for (std::size_t e = 0; e < expected.size(); ++e)
      fixed_.push_back(macros_.write(expected[e].key).text != expected[e].text);
  }

  NameMatch run() {
    write_all();
    while (change_a_macro()) write_all();
    match_equal();
    match_fused();
    match_renamed();
    std::set<std::string> held;  // keys of which some names fit
    for (std::size_t e = 0; e < expected_.size(); ++e)
      if (of_expected_[e]) held.insert(expected_[e].key);
    for (ExpectedGroup const& each : expected_)
      if (!held.contains(each.key)) add_absent(each.key);
    for (std::size_t f = 0; f < found_.size(); ++f)
      if (!of_found_[f]) result_.left.push_back(f);
    return std::move(result_);
  }

 private:
  void write_all() {
    for (std::size_t e = 0; e < expected_.size(); ++e) {
      written_[e] = macros_.write(expected_[e].key);
      if (fixed_[e]) written_[e].text = expected_[e].text;
    }
  }

  void add_absent(std::string const& key) {
    if (std::find(result_.absent.begin(), result_.absent.end(), key) == result_.absent.end())
      result_.absent.push_back(key);
  }

  bool fits(std::size_t e, std::size_t f) const {
    return !found_[f].shape || *found_[f].shape == expected_[e].shape;
  }

  std::optional<std::size_t> found_as(std::string_view text) const {
    for (std::size_t f = 0; f < found_.size(); ++f)
      if (found_[f].text == text) return f;
    return std::nullopt;
  }

  /// Gives a macro the text with which the most names fit that do not fit yet.
  bool change_a_macro() {
    std::map<std::pair<std::string, std::string>, std::set<std::size_t>> votes;
    std::map<std::string, std::vector<std::string>> fields;
    for (auto const& [name, content] : macros_.texts()) {
      Written const now = macros_.write(content);
      fields[name] = now.fields;
      if (now.text.empty()) continue;
      for (std::size_t e = 0; e < expected_.size(); ++e) {
        if (fixed_[e] || found_as(written_[e].text) || !written_[e].text.starts_with(now.text))
          continue;
        std::string const tail = written_[e].text.substr(now.text.size());
        if (tail.find('.') == std::string::npos) continue;
        for (std::size_t f = 0; f < found_.size(); ++f) {
          std::string const& text = found_[f].text;
          if (!text.ends_with(tail) || !fits(e, f)) continue;
          std::string const front = text.substr(0, text.size() - tail.size());
          if (numbers(front) != numbers(now.text) || expects(text) ||
              (!front.empty() && front.back() != '.'))
            continue;
          votes[{name, front}].insert(e);
        }
      }
    }
    auto const best =
        std::max_element(votes.begin(), votes.end(), [&](auto const& a, auto const& b) {
          return std::pair(a.second.size(), b.first.second.size()) <
                 std::pair(b.second.size(), a.first.second.size());
        });
    if (best == votes.end() || best->second.size() < least_votes) return false;
    auto const& [name, front] = best->first;
    std::string text = macros_.key_of(front, fields[name], name);
    std::erase_if(result_.macros, [&](NameMacro const& macro) { return macro.name == name; });
    result_.macros.push_back({name, text});
    macros_.set(name, std::move(text));
    return ++changes_ < 2 * found_.size();  // each change makes more names fit
  }

  bool expects(std::string_view text) const {
    return std::any_of(written_.begin(), written_.end(),
                       [&](Written const& written) { return written.text == text; });
  }

  void match_equal() {
    for (std::size_t e = 0; e < expected_.size(); ++e) {
      auto const f = found_as(written_[e].text);
      if (!f) continue;
      if (!fits(e, *f))
        result_.reshaped.push_back(fmt::format("{} is [{}], expected [{}]", found_[*f].text,
                                               fmt::join(*found_[*f].shape, ", "),
                                               fmt::join(expected_[e].shape, ", ")));
      result_.equal += of_found_[*f] ? 0U : 1U;
      of_expected_[e] = of_found_[*f] = true;
    }
  }

  /// Neighbours in the map under one module whose rows together are those of a stored tensor.
  void match_fused() {
    for (std::size_t f = 0; f < found_.size(); ++f) {
      if (of_found_[f]) continue;
      std::vector<std::size_t> best;
      double best_alike = -1;
      for (std::size_t count = 2; count <= most_fused; ++count)
        for (std::size_t e = 0; e + count <= expected_.size(); ++e) {
          std::vector<std::size_t> const run = fused_run(e, count, f);
          if (run.empty()) continue;
          double const value = alike(found_[f].text, expected_[e].text);
          if (value >= best_alike) {  // of equal ones the longest
            best = run;
            best_alike = value;
          }
        }
      if (!best.empty()) take_fused(f, best);
    }
  }

  std::vector<std::size_t> fused_run(std::size_t first, std::size_t count, std::size_t f) const {
    std::vector<std::size_t> run;
    NameGroup const& found = found_[f];
    Index rows = 0;
    std::vector<std::string> layouts;
    for (std::size_t e = first; e < first + count; ++e) {
      ExpectedGroup const& each = expected_[e];
      if (of_expected_[e] || parent_of(each.text) != parent_of(expected_[first].text) ||
          last_word(each.text) != last_word(expected_[first].text) ||
          last_word(each.text) != last_word(found.text) ||
          numbers(written_[e].text) != numbers(found.text) || each.shape.empty())
        return {};
      rows += each.shape.front();
      layouts.push_back(each.is);
      run.push_back(e);
    }
    if (!joined_layout(layouts)) return {};
    if (!found.shape) return names_all(found.text, run) ? run : std::vector<std::size_t>();
    std::vector<Index> shape = expected_[first].shape;
    shape.front() = rows;
    return shape == *found.shape ? run : std::vector<std::size_t>();
  }

  /// Without a shape: the name has a word of each, or its first letter ("qkv").
  bool names_all(std::string_view text, std::vector<std::size_t> const& run) const {
    std::set<std::string> const words = words_of(text);
    return std::all_of(run.begin(), run.end(), [&](std::size_t e) {
      std::string const own(last_word(module_of(expected_[e].text)));
      std::string const word = own.substr(0, own.find('_'));
      return words.contains(word) ||
             (word.size() == 1 && std::any_of(words.begin(), words.end(), [&](auto const& other) {
                return other == "qkv" && other.find(word) != std::string::npos;
              }));
    });
  }

  void take_fused(std::size_t f, std::vector<std::size_t> const& run) {
    NameChange change;
    std::vector<std::string> layouts;
    std::string parts;
    for (std::size_t const e : run) {
      layouts.push_back(expected_[e].is);
      change.replaced.push_back(expected_[e].key);
      parts +=
          fmt::format("{}{}", parts.empty() ? "" : ", ", last_word(module_of(expected_[e].text)));
      of_expected_[e] = true;
    }
    change.key = macros_.key_of(found_[f].text, written_[run.front()].fields);
    change.is = *joined_layout(layouts);
    change.reason = parts + " in this order?";
    of_found_[f] = true;
    result_.changes.push_back(std::move(change));
  }

  void match_renamed() {
    struct Pair {
      double value;
      std::size_t e;
      std::size_t f;
    };
    std::vector<Pair> pairs;
    for (std::size_t e = 0; e < expected_.size(); ++e)
      for (std::size_t f = 0; f < found_.size(); ++f) {
        if (of_expected_[e] || of_found_[f] || !fits(e, f) ||
            numbers(written_[e].text) != numbers(found_[f].text) ||
            (last_word(written_[e].text) == "bias") != (last_word(found_[f].text) == "bias"))
          continue;
        double value = alike(written_[e].text, found_[f].text);
        if (found_[f].shape && alone(e, f)) value += 1;  // no other has this shape
        if (value >= least_alike) pairs.push_back({value, e, f});
      }
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](Pair const& a, Pair const& b) { return a.value > b.value; });
    for (Pair const& pair : pairs) {
      if (of_expected_[pair.e] || of_found_[pair.f]) continue;
      of_expected_[pair.e] = of_found_[pair.f] = true;
      ExpectedGroup const& each = expected_[pair.e];
      result_.changes.push_back(
          {macros_.key_of(found_[pair.f].text, written_[pair.e].fields),
           each.is,
           {each.key},
           pair.value >= 1 ? "by its shape" : "by its name: the same tensor?"});
    }
  }

  /// Whether no other name on either side that is not matched has this shape.
  bool alone(std::size_t expected, std::size_t found) const {
    for (std::size_t e = 0; e < expected_.size(); ++e)
      if (e != expected && !of_expected_[e] && expected_[e].shape == expected_[expected].shape &&
          expected_[e].key != expected_[expected].key)
        return false;
    for (std::size_t f = 0; f < found_.size(); ++f)
      if (f != found && !of_found_[f] && (!found_[f].shape || fits(expected, f))) return false;
    return true;
  }

  std::span<ExpectedGroup const> expected_;
  std::span<NameGroup const> found_;
  Macros macros_;
  std::vector<Written> written_;  ///< of each expected group
  std::vector<bool> fixed_;       ///< macros with conditions: the text is as it is
  std::vector<bool> of_expected_;
  std::vector<bool> of_found_;
  std::size_t changes_ = 0;
  NameMatch result_;
};

}  // namespace

NameMatch match_names(std::span<ExpectedGroup const> expected, std::span<NameMacro const> macros,
                      std::span<NameGroup const> found) {
  return Matcher(expected, macros, found).run();
}

}  // namespace reshard
