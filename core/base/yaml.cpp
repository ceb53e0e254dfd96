#include "core/base/yaml.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <yaml.h>

namespace reshard {
namespace {

constexpr int deepest = 64;
constexpr std::size_t most_values = 200'000;

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
  /// Of the event.
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
std::optional<Number> whole(std::string_view text) {
  Number value{};
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                  : std::nullopt;
}

/// A number of YAML 1.1 in base ten; nothing for a text. 1e5 has no point, so it is a text.
std::optional<Json> number(std::string_view text) {
  bool const plus = text.starts_with('+');
  std::string_view const digits = plus || text.starts_with('-') ? text.substr(1) : text;
  std::string_view const written = plus ? digits : text;
  if (digits.empty()) return std::nullopt;
  bool const decimal = digits.find_first_not_of("0123456789") == std::string_view::npos;
  if (decimal && (digits == "0" || digits.front() != '0')) {
    if (auto const value = whole<std::int64_t>(written)) return Json(*value);
    return std::nullopt;
  }
  if (digits == ".inf" || digits == ".Inf" || digits == ".INF") {
    double const infinite = std::numeric_limits<double>::infinity();
    return Json(text.front() == '-' ? -infinite : infinite);
  }
  if (text == ".nan" || text == ".NaN" || text == ".NAN")
    return Json(std::numeric_limits<double>::quiet_NaN());
  bool const starts = (digits.front() >= '0' && digits.front() <= '9') || digits.front() == '.';
  if (!starts || digits.find('.') == std::string_view::npos ||
      digits.find_first_of("0123456789") == std::string_view::npos ||
      digits.find_first_not_of("0123456789.eE+-") != std::string_view::npos)
    return std::nullopt;
  if (auto const value = whole<double>(written)) return Json(*value);
  return std::nullopt;
}

Json plain_value(std::string_view text) {
  if (is_one_of(text, nulls)) return {};
  if (is_one_of(text, trues)) return Json(true);
  if (is_one_of(text, falses)) return Json(false);
  if (auto value = number(text)) return std::move(*value);
  return Json(text);
}

std::string_view view(unsigned char const* text) {
  return text == nullptr ? std::string_view()
                         : std::string_view(reinterpret_cast<char const*>(text));
}

constexpr std::string_view own_tags = "tag:yaml.org,2002:";

/// Whether the value behind a tag is what it would be without.
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
    fail(ErrorKind::source, "{}:{}: {}. The file is damaged or hostile.", place_, events_.line(),
         what);
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
      default: refuse("expected a value");
    }
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
    for (;;) {
      yaml_event_t const& event = events_.next();
      if (event.type == YAML_MAPPING_END_EVENT) break;
      if (event.type != YAML_SCALAR_EVENT) refuse("a key that is not a string");
      count(1);
      std::string key(reinterpret_cast<char const*>(event.data.scalar.value),
                      event.data.scalar.length);
      members.emplace_back(std::move(key), value(events_.next(), depth + 1));
    }
    check_keys(members);
    return Json(std::move(members));
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
  std::map<std::string, std::optional<Json>, std::less<>> anchors_;  ///< nothing: still being read
  std::size_t values_ = 0;
};

}  // namespace

Json parse_yaml(std::string_view text, std::string_view place) {
  if (text.size() > largest_yaml_bytes)
    fail(ErrorKind::source,
         "{}: has {} bytes, a file of settings has at most {}. This is another file: restore "
         "the right one.",
         place, text.size(), largest_yaml_bytes);
  return Reader(text, place).document();
}

}  // namespace reshard
