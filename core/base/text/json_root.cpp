#include "core/base/text/json_root.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace reshard {
namespace {

/// The bytes that are parsed at a time.
constexpr std::size_t step_bytes = std::size_t{256} << 10U;

/// Steps over the values of a JSON text without parsing them: distinguishes brackets and commas
/// from the content of strings. Malformed values are refused later, by their parser.
class Steps {
 public:
  explicit Steps(std::string_view text, std::size_t at = 0) : text_(text), at_(at) {}

  std::size_t at() const { return at_; }
  bool done() const { return at_ >= text_.size(); }

  void space() {
    while (!done() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool take(char c) {
    if (done() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  /// Steps past a string and returns its content, with escapes as they are.
  std::optional<std::string_view> string() {
    if (!take('"')) return std::nullopt;
    std::size_t const begin = at_;
    for (; !done() && text_[at_] != '"'; ++at_)
      if (text_[at_] == '\\') ++at_;
    if (done()) {
      at_ = text_.size();  // a backslash was the last
      return std::nullopt;
    }
    return text_.substr(begin, at_++ - begin);
  }
  /// Steps past the next comma that is in no inner value (true), or to the bracket that closes the
  /// outer value (false).
  bool value() {
    for (std::size_t depth = 0; !done(); ++at_) {
      char const c = text_[at_];
      if (c == '"') {
        if (!string()) return false;
        --at_;
      } else if (c == '[' || c == '{') {
        ++depth;
      } else if (c == ']' || c == '}') {
        if (depth == 0) return false;
        --depth;
      } else if (c == ',' && depth == 0) {
        ++at_;
        return true;
      }
    }
    return false;
  }

 private:
  std::string_view text_;
  std::size_t at_;
};

/// A member of the root: its key, and its value as [begin, end) of the text.
struct Place {
  std::string_view key;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// The places of the members with these keys; empty if the text is not an object.
std::vector<Place> find_members(std::string_view text, std::span<std::string_view const> keys) {
  std::vector<Place> found;
  Steps steps(text);
  steps.space();
  if (!steps.take('{')) return {};
  for (bool more = true; more;) {
    steps.space();
    auto const key = steps.string();
    steps.space();
    if (!key || !steps.take(':')) return {};
    steps.space();
    std::size_t const begin = steps.at();
    more = steps.value();
    std::size_t end = steps.at() - (more ? 1 : 0);
    while (end > begin && std::string_view(" \t\r\n").find(text[end - 1]) != std::string_view::npos)
      --end;
    if (std::ranges::find(keys, *key) != keys.end()) found.push_back({*key, begin, end});
  }
  return found;
}

bool is_enclosed(std::string_view text, char open) {
  return text.size() >= 2 && text.front() == open && text.back() == (open == '[' ? ']' : '}');
}

/// Parses the items between the brackets, about step_bytes at a time.
void in_steps(std::string_view text, std::string_view place,
              std::function<void(Json const& part)> const& take) {
  std::string_view const inner = text.substr(1, text.size() - 2);
  Steps steps(inner);
  for (bool more = true; more;) {
    std::size_t const begin = steps.at();
    while (more && steps.at() - begin < step_bytes) more = steps.value();
    if (!more && steps.at() < inner.size())  // a bracket too many
      (void)parse_json(text, place);
    std::string part(1, text.front());
    part += inner.substr(begin, steps.at() - begin - (more ? 1 : 0));
    part += text.back();
    if (more && steps.done()) part.insert(part.size() - 1, 1, ',');  // the last one: refused
    take(parse_json(part, place));
  }
}

}  // namespace

JsonRoot::JsonRoot(std::string_view text, std::string_view place,
                   std::span<std::string_view const> long_members, char open)
    : place_(place) {
  std::string rest;
  std::size_t begin = 0;
  for (Place const& member : find_members(text, long_members)) {
    std::string_view const value = text.substr(member.begin, member.end - member.begin);
    if (!is_enclosed(value, open)) continue;
    rest += text.substr(begin, member.begin - begin);
    rest += "null";
    begin = member.end;
    texts_.emplace(member.key, value);
  }
  members_ = parse_json(begin == 0 ? text : rest += text.substr(begin), place);
}

bool JsonRoot::read(std::string_view member, bool (*is_wanted)(Json const&),
                    std::function<void(Json const& part)> const& take) const {
  if (auto const text = texts_.find(member); text != texts_.end()) {
    in_steps(text->second, place_, take);
    return true;
  }
  Json const* const value = members_.find(member);
  if (value == nullptr || !is_wanted(*value)) return false;
  take(*value);
  return true;
}

bool JsonRoot::items(std::string_view member,
                     std::function<void(std::size_t number, Json const& item)> const& take) const {
  std::size_t number = 0;
  return read(
      member, [](Json const& value) { return value.items() != nullptr; },
      [&](Json const& part) {
        for (Json const& item : *part.items()) take(number++, item);
      });
}

bool JsonRoot::entries(
    std::string_view member,
    std::function<void(std::string const& key, Json const& value)> const& take) const {
  return read(
      member, [](Json const& value) { return value.members() != nullptr; },
      [&](Json const& part) {
        for (auto const& [key, value] : *part.members()) take(key, value);
      });
}

}  // namespace reshard
