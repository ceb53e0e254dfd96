#include "core/base/text/yaml.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <yaml.h>

namespace reshard {
namespace {

constexpr int deepest = 64;
constexpr std::size_t most_values = 200'000;
constexpr std::string_view merge_key = "<<";
constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

/// libyaml's parser over a text that outlives it.
class Events {
 public:
  Events(std::string_view text, std::string_view place) : place_(place) {
    if (yaml_parser_initialize(&parser_) == 0)
      fail(ErrorKind::resources,
           "{}: no memory is left to read YAML. Start fewer ranks on "
           "this host.",
           place);
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<unsigned char const*>(text.data()),
                                 text.size());
  }
  ~Events() {
    drop();
    yaml_parser_delete(&parser_);
  }
  Events(Events const&) = delete;
  Events& operator=(Events const&) = delete;

  /// The next event; it lives until the next call.
  yaml_event_t const& next() {
    drop();
    if (yaml_parser_parse(&parser_, &event_) == 0)
      fail(ErrorKind::source, "{}:{}: {}. The file is not YAML, or damaged: restore it.", place_,
           parser_.problem_mark.line + 1,
           parser_.problem == nullptr ? "the text ends early" : parser_.problem);
    held_ = true;
    return event_;
  }
  /// The line of the event, from 0.
  std::size_t line() const { return event_.start_mark.line + 1; }

 private:
  void drop() {
    if (held_) yaml_event_delete(&event_);
    held_ = false;
  }

  std::string_view place_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
  bool held_ = false;
};

bool is_one_of(std::string_view text, std::span<std::string_view const> words) {
  return std::ranges::find(words, text) != words.end();
}

constexpr std::array<std::string_view, 5> nulls = {"", "~", "null", "Null", "NULL"};
constexpr std::array<std::string_view, 9> trues = {"yes",  "Yes", "YES", "true", "True",
                                                   "TRUE", "on",  "On",  "ON"};
constexpr std::array<std::string_view, 9> falses = {"no",    "No",  "NO",  "false", "False",
                                                    "FALSE", "off", "Off", "OFF"};

template <class Number>
std::optional<Number> whole(std::string_view text, int base = 10) {
  Number value{};
  std::from_chars_result found{};
  if constexpr (std::is_integral_v<Number>)
    found = std::from_chars(text.data(), text.data() + text.size(), value, base);
  else
    found = std::from_chars(text.data(), text.data() + text.size(), value);
  return found.ec == std::errc() && found.ptr == text.data() + text.size() ? std::optional(value)
                                                                           : std::nullopt;
}

constexpr std::string_view decimal_digits = "0123456789";

bool has_only(std::string_view text, std::string_view letters) {
  return text.find_first_not_of(letters) == std::string_view::npos;
}
bool is_digit(char letter) { return decimal_digits.find(letter) != std::string_view::npos; }

/// A text without its sign and its underscores.
struct Unsigned {
  bool negative = false;
  std::string_view written;  ///< with underscores
  std::string digits;
};

Unsigned unsigned_text(std::string_view text) {
  Unsigned result;
  result.negative = text.starts_with('-');
  if (result.negative || text.starts_with('+')) text.remove_prefix(1);
  result.written = text;
  std::ranges::copy_if(text, std::back_inserter(result.digits), [](char c) { return c != '_'; });
  return result;
}

/// "2:46:40": the base-60 digits after the first, which is written in base ten. nullopt if one of
/// them is malformed or there is none.
std::optional<std::vector<std::int64_t>> sixties(std::string_view text) {
  std::vector<std::int64_t> places;
  for (std::size_t at = text.find(':'); at < text.size(); at = text.find(':', at + 1)) {
    std::size_t const end = std::min(text.find(':', at + 1), text.size());
    std::string_view const place = text.substr(at + 1, end - at - 1);
    if (place.empty() || place.size() > 2 || !has_only(place, decimal_digits) ||
        (place.size() == 2 && place.front() > '5'))
      return std::nullopt;
    places.push_back(*whole<std::int64_t>(place));
  }
  return places.empty() ? std::nullopt : std::optional(std::move(places));
}

/// An integer of YAML 1.1: in base ten, 2 (0b11), 8 (017), 16 (0x1f) or 60 (1:30); nullopt for a
/// text and for an integer beyond 64 bits.
std::optional<Json> integer(std::string_view text) {
  Unsigned const is = unsigned_text(text);
  std::string_view const written = is.written;
  std::string const sign = is.negative ? "-" : "";
  if (written.empty() || !is_digit(written.front())) return std::nullopt;
  auto const in_base = [&](std::string_view digits, int base) -> std::optional<Json> {
    if (auto const value = whole<std::int64_t>(sign + std::string(digits), base))
      return Json(*value);
    return std::nullopt;
  };
  std::string_view const digits = is.digits;
  if (written.starts_with("0b") && has_only(written.substr(2), "01_"))
    return in_base(digits.substr(2), 2);
  if (written.starts_with("0x") && has_only(written.substr(2), "0123456789abcdefABCDEF_"))
    return in_base(digits.substr(2), 16);
  if (written.front() == '0')
    return has_only(written, "01234567_") ? in_base(digits, 8) : std::nullopt;
  if (has_only(written, "0123456789_")) return in_base(digits, 10);
  std::size_t const colon = written.find(':');
  auto const places = sixties(written);
  if (!places || !has_only(written.substr(0, colon), "0123456789_")) return std::nullopt;
  auto value = whole<std::int64_t>(std::string_view(digits).substr(0, digits.find(':')));
  for (std::int64_t const place : *places) {
    if (!value || *value > (std::numeric_limits<std::int64_t>::max() - place) / 60)
      return std::nullopt;
    value = *value * 60 + place;
  }
  return value ? std::optional(Json(is.negative ? -*value : *value)) : std::nullopt;
}

/// Whether a text behind the point of a float is digits, with an exponent that has a sign or none.
bool is_fraction(std::string_view text) {
  std::size_t const exponent = std::min(text.find_first_of("eE"), text.size());
  if (!has_only(text.substr(0, exponent), "0123456789_")) return false;
  if (exponent == text.size()) return true;
  std::string_view const power = text.substr(exponent + 1);
  return power.size() > 1 && (power.front() == '+' || power.front() == '-') &&
         has_only(power.substr(1), decimal_digits);
}

/// A float of YAML 1.1, which has a point: 1e5 and 1.5e3 are texts. A number beyond the range of a
/// double is a text, too.
std::optional<Json> real(std::string_view text) {
  Unsigned const is = unsigned_text(text);
  std::string_view const written = is.written;
  double const sign = is.negative ? -1 : 1;
  if (written == ".inf" || written == ".Inf" || written == ".INF")
    return Json(sign * std::numeric_limits<double>::infinity());
  if (text == ".nan" || text == ".NaN" || text == ".NAN")
    return Json(std::numeric_limits<double>::quiet_NaN());
  std::size_t const point = written.find('.');
  if (point == std::string_view::npos) return std::nullopt;
  std::string_view const behind = written.substr(point + 1);
  bool const alone = point == 0;
  if (alone ? written != text || behind.empty() || !is_digit(behind.front())
            : !is_digit(written.front()))
    return std::nullopt;
  std::string_view const before = written.substr(0, point);
  std::size_t const colon = before.find(':');
  auto const places = sixties(before);
  if (!has_only(before.substr(0, colon), "0123456789_") || !is_fraction(behind) ||
      (colon != std::string_view::npos &&
       (!places || behind.find_first_of("eE") != std::string_view::npos)))
    return std::nullopt;
  std::string_view const digits = is.digits;
  if (!places) {
    auto const value = whole<double>(digits);
    return value ? std::optional(Json(sign * *value)) : std::nullopt;
  }
  auto value = whole<double>(digits.substr(0, digits.find(':')));
  for (std::int64_t const place : *places) value = *value * 60 + static_cast<double>(place);
  std::string const rest = "0" + std::string(digits.substr(digits.find('.')));
  return Json(sign * (*value + *whole<double>(rest)));
}

Json plain_value(std::string_view text) {
  if (is_one_of(text, nulls)) return {};
  if (is_one_of(text, trues)) return Json(true);
  if (is_one_of(text, falses)) return Json(false);
  if (auto value = integer(text)) return std::move(*value);
  if (auto value = real(text)) return std::move(*value);
  return Json(text);
}

std::string_view view(unsigned char const* text) {
  return text == nullptr ? std::string_view()
                         : std::string_view(reinterpret_cast<char const*>(text));
}

constexpr std::string_view own_tags = "tag:yaml.org,2002:";

/// Whether the tag leaves the value unchanged.
bool is_plain_tag(std::string_view tag) {
  if (tag.empty() || tag == "!") return true;
  if (!tag.starts_with(own_tags)) return false;
  constexpr std::array<std::string_view, 8> known = {"str",  "int", "float", "bool",
                                                     "null", "seq", "map",   "python/tuple"};
  return is_one_of(tag.substr(own_tags.size()), known);
}

std::size_t values_in(Json const& value) {
  std::size_t count = 1;
  if (auto const* items = value.items())
    for (Json const& item : *items) count += values_in(item);
  if (auto const* members = value.members())
    for (auto const& [key, member] : *members) count += values_in(member);
  return count;
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view place) : place_(place), events_(text, place) {}

  Json document() {
    events_.next();  // the stream begins
    Json result;
    if (events_.next().type == YAML_STREAM_END_EVENT) return result;
    result = value(events_.next(), 0);
    events_.next();  // the document ends
    if (events_.next().type != YAML_STREAM_END_EVENT)
      refuse("a second document begins, expected one");
    return result;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorKind::source, "{}:{}: {}. The file is damaged.", place_, events_.line(), what);
  }

  void count(std::size_t values) {
    values_ += values;
    if (values_ > most_values)
      refuse(fmt::format("more than {} values, aliases counted as copies", most_values));
  }

  /// The value that an event begins.
  Json value(yaml_event_t const& event, int depth) {
    if (depth > deepest) refuse(fmt::format("nested deeper than {} levels", deepest));
    switch (event.type) {
      case YAML_ALIAS_EVENT: return alias(std::string(view(event.data.alias.anchor)));
      case YAML_SCALAR_EVENT: return scalar(event);
      case YAML_SEQUENCE_START_EVENT: {
        auto const& start = event.data.sequence_start;
        return keep(std::string(view(start.anchor)), is_plain_tag(view(start.tag)),
                    [&] { return sequence(depth); });
      }
      case YAML_MAPPING_START_EVENT: {
        auto const& start = event.data.mapping_start;
        return keep(std::string(view(start.anchor)), is_plain_tag(view(start.tag)),
                    [&] { return mapping(depth); });
      }
      default: break;
    }
    broken("libyaml gives a node here", __FILE__, __LINE__);
  }

  /// A collection: read, and remembered where it has an anchor.
  template <class Read>
  Json keep(std::string const& anchor, bool plain, Read const& read) {
    count(1);
    if (!anchor.empty()) anchors_[anchor] = std::nullopt;
    Json result = read();
    if (!plain) result = Json();
    if (!anchor.empty()) remember(anchor, result);
    return result;
  }

  void remember(std::string const& anchor, Json const& value) {
    count(values_in(value));
    anchors_[anchor] = value;
  }

  Json scalar(yaml_event_t const& event) {
    count(1);
    auto const& found = event.data.scalar;
    std::string_view const text(reinterpret_cast<char const*>(found.value), found.length);
    std::string_view const tag = view(found.tag);
    Json result;
    if (is_plain_tag(tag)) {
      bool const stated = tag.ends_with(":str") || tag == "!";
      bool const plain = found.style == YAML_PLAIN_SCALAR_STYLE || tag.starts_with(own_tags);
      result = plain && !stated ? plain_value(text) : Json(text);
    }
    if (found.anchor != nullptr) remember(std::string(view(found.anchor)), result);
    return result;
  }

  Json alias(std::string const& name) {
    auto const found = anchors_.find(name);
    if (found == anchors_.end())
      refuse(fmt::format("the alias {} has no anchor", json_quoted(name)));
    if (!found->second)
      refuse(fmt::format("the alias {} is inside its own anchor", json_quoted(name)));
    count(values_in(*found->second));
    return *found->second;
  }

  Json sequence(int depth) {
    Json::Array items;
    for (;;) {
      yaml_event_t const& event = events_.next();
      if (event.type == YAML_SEQUENCE_END_EVENT) return Json(std::move(items));
      items.push_back(value(event, depth + 1));
    }
  }

  Json mapping(int depth) {
    Json::Object members;
    std::optional<Json> merged;
    for (;;) {
      yaml_event_t const& event = events_.next();
      if (event.type == YAML_MAPPING_END_EVENT) break;
      if (event.type != YAML_SCALAR_EVENT) refuse("a key that is not a string");
      count(1);
      auto const& found = event.data.scalar;
      std::string key(reinterpret_cast<char const*>(found.value), found.length);
      bool const merges =
          key == merge_key && found.style == YAML_PLAIN_SCALAR_STYLE && found.tag == nullptr;
      Json its = value(events_.next(), depth + 1);
      if (!merges) {
        members.emplace_back(std::move(key), std::move(its));
        continue;
      }
      if (merged) refuse("the key \"<<\" appears twice in one mapping");
      merged = std::move(its);
    }
    check_keys(members);
    if (merged) merge(members, *merged);
    return Json(std::move(members));
  }

  /// Adds the members that `<<` takes over: those of a mapping, or of each mapping of a list, the
  /// first of which counts. Existing members stay.
  void merge(Json::Object& members, Json const& from) const {
    if (auto const* list = from.items()) {
      for (Json const& one : *list) {
        if (one.members() == nullptr) refuse_merge();
        merge(members, one);
      }
      return;
    }
    if (from.members() == nullptr) refuse_merge();
    std::set<std::string, std::less<>> known;
    for (auto const& [key, member] : members) known.insert(key);
    for (auto const& [key, member] : *from.members())
      if (!known.contains(key)) members.emplace_back(key, member);
  }

  [[noreturn]] void refuse_merge() const {
    refuse("the key << takes over the members of mappings, and it has something else");
  }

  void check_keys(Json::Object const& members) const {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (auto const& [key, member] : members) keys.push_back(key);
    std::ranges::sort(keys);
    if (auto const twice = std::ranges::adjacent_find(keys); twice != keys.end())
      refuse(fmt::format("the key {} appears twice in one mapping", json_quoted(*twice)));
  }

  std::string_view place_;
  Events events_;
  std::map<std::string, std::optional<Json>, std::less<>> anchors_;  ///< nullopt: still being read
  std::size_t values_ = 0;
};

}  // namespace

Json parse_yaml(std::string_view text, std::string_view place) {
  if (text.size() > largest_yaml_bytes)
    fail(ErrorKind::source,
         "{}: has {} bytes, a file of settings has at most {}. This is another file: restore "
         "the right one.",
         place, text.size(), largest_yaml_bytes);
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  return Reader(text, place).document();
}

}  // namespace reshard
