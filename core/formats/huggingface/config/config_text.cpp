#include <algorithm>
#include <utility>

#include "core/base/error.hpp"
#include "core/formats/huggingface/config/config.hpp"

namespace reshard::huggingface {
namespace {

constexpr std::string_view blanks = " \t\r\n";

/// Where a member is in the text: its key's first quote, its value's first byte, one past its
/// value's last byte.
struct MemberPlace {
  std::size_t key_begin;
  std::size_t key_end;
  std::size_t value_begin;
  std::size_t value_end;
};

std::size_t after_blanks(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(blanks, at), text.size());
}

/// Pre for both: the text is valid JSON (parse_config has accepted it) and a string, respectively a
/// value, begins at `at`.
std::size_t after_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return std::min(at + 1, text.size());
}

std::size_t after_value(std::string_view text, std::size_t at) {
  if (text[at] == '"') return after_string(text, at);
  if (text[at] != '{' && text[at] != '[')
    return std::min(text.find_first_of(",]} \t\r\n", at), text.size());
  int depth = 0;
  while (at < text.size()) {
    if (text[at] == '"') {
      at = after_string(text, at);
      continue;
    }
    if (text[at] == '{' || text[at] == '[') ++depth;
    if ((text[at] == '}' || text[at] == ']') && --depth == 0) return at + 1;
    ++at;
  }
  return at;
}

/// The members of the object that begins at `object`.
std::vector<MemberPlace> members_at(std::string_view text, std::size_t object) {
  std::vector<MemberPlace> members;
  for (std::size_t at = after_blanks(text, object + 1); at < text.size() && text[at] != '}';) {
    MemberPlace member{};
    member.key_begin = at;
    member.key_end = after_string(text, at);
    member.value_begin = after_blanks(text, after_blanks(text, member.key_end) + 1);
    member.value_end = after_value(text, member.value_begin);
    members.push_back(member);
    at = after_blanks(text, member.value_end);
    if (at < text.size() && text[at] == ',') at = after_blanks(text, at + 1);
  }
  return members;
}

/// The value as text that fits where `indent` is the white space that begins its line; one line
/// when the file has one line.
std::string fitted(Json const& value, std::string_view indent) {
  auto const newline = indent.rfind('\n');
  if (newline == std::string_view::npos) return value.dump();
  std::string text;
  for (char const c : value.dump(2)) {
    text += c;
    if (c == '\n') text += indent.substr(newline + 1);
  }
  return text;
}

/// The blanks between the bracket or comma and the key.
std::string_view space_before(std::string_view text, std::size_t key_begin) {
  std::size_t const end = text.find_last_not_of(blanks, key_begin - 1) + 1;
  return text.substr(end, key_begin - end);
}

Json nested(ConfigPatch const& change, std::size_t depth) {
  Json value = *change.value;
  for (std::size_t d = change.path.size(); d > depth + 1; --d)
    value = Json(Json::Object{{change.path[d - 1], std::move(value)}});
  return value;
}

std::string with_member(std::string text, std::size_t object,
                        std::vector<MemberPlace> const& members, std::string_view key,
                        Json const& value) {
  if (members.empty()) {
    std::size_t const end = after_value(text, object);
    return text.replace(object, end - object,
                        Json(Json::Object{{std::string(key), value}})
                            .dump(text.find('\n') == std::string::npos ? 0 : 2));
  }
  std::string const indent(space_before(text, members.front().key_begin));
  std::string const separator = indent.empty() ? " " : indent;
  return text.insert(members.back().value_end,
                     "," + separator + json_quoted(key) + ": " + fitted(value, indent));
}

std::string without_member(std::string text, std::vector<MemberPlace> const& members,
                           std::size_t k) {
  if (k != 0)
    return text.erase(members[k - 1].value_end, members[k].value_end - members[k - 1].value_end);
  std::size_t const end = members.size() == 1 ? members[0].value_end : members[1].key_begin;
  return text.erase(members[0].key_begin, end - members[0].key_begin);
}

/// Pre: a value begins at `at`.
bool same_value(std::string_view text, MemberPlace const& member, Json const& value,
                std::string_view place) {
  std::string const wrapped = fmt::format(
      "{{\"v\":{}}}", text.substr(member.value_begin, member.value_end - member.value_begin));
  return *parse_config(wrapped, place).find("v") == value;
}

/// Keys rarely have escapes, and a large file has very many keys.
bool is_key(std::string_view text, MemberPlace const& member, std::string_view key,
            std::string_view place) {
  std::string_view const quoted = text.substr(member.key_begin, member.key_end - member.key_begin);
  if (quoted.find('\\') == std::string_view::npos)
    return quoted.substr(1, quoted.size() - 2) == key;
  return *parse_json(fmt::format("[{}]", quoted), place).items()->front().text() == key;
}

std::string patched(std::string text, ConfigPatch const& change, std::string_view place) {
  std::size_t object = after_blanks(text, 0);
  for (std::size_t depth = 0;; ++depth) {
    std::string const& key = change.path[depth];
    bool const last = depth + 1 == change.path.size();
    auto const members = members_at(text, object);
    auto const found = std::ranges::find_if(
        members, [&](MemberPlace const& member) { return is_key(text, member, key, place); });
    if (found == members.end())
      return change.value
                 ? with_member(std::move(text), object, members, key, nested(change, depth))
                 : text;
    bool const is_object = text[found->value_begin] == '{';
    if (!last && is_object) {
      object = found->value_begin;
    } else if (!change.value) {
      return last ? without_member(std::move(text), members,
                                   static_cast<std::size_t>(found - members.begin()))
                  : text;
    } else {
      Json const value = nested(change, depth);
      if (same_value(text, *found, value, place)) return text;
      std::string const indent(space_before(text, found->key_begin));
      return text.replace(found->value_begin, found->value_end - found->value_begin,
                          fitted(value, indent));
    }
  }
}

}  // namespace

std::string patched_config_text(std::string text, std::span<ConfigPatch const> patches,
                                std::string_view place) {
  bool const absent = text.empty();
  if (absent) text = "{}\n";
  parse_config(text, place);
  std::string const before = text;
  for (ConfigPatch const& change : patches) {
    RESHARD_EXPECT(!change.path.empty());
    text = patched(std::move(text), change, place);
  }
  return absent && text == before ? std::string{} : text;
}

}  // namespace reshard::huggingface
