#include "core/formats/manifest/member.hpp"

#include <algorithm>

namespace reshard {

void JsonPlace::fail_member(std::string_view key, std::string_view wanted) const {
  Json const* const found = value.find(key);
  std::string shown = found != nullptr ? found->dump() : "missing";
  constexpr std::size_t most = 80;
  if (shown.size() > most) shown = shown.substr(0, most) + "…";
  fail(ErrorKind::source,
       "{}: {}{}{} is {}, {} is needed. The file is damaged: compare it with the original.", file,
       place, place.empty() ? "" : ".", json_quoted(key), shown, wanted);
}

Json const& JsonPlace::member(std::string_view key) const {
  Json const* const found = value.find(key);
  if (found == nullptr) fail_member(key, "a value");
  return *found;
}

std::string const& JsonPlace::text(std::string_view key) const {
  std::string const* const text = member(key).text();
  if (text == nullptr) fail_member(key, "a string");
  return *text;
}

std::int64_t JsonPlace::number(std::string_view key) const {
  std::int64_t const* const number = member(key).integer();
  if (number == nullptr) fail_member(key, "an integer");
  return *number;
}

Json::Array const& JsonPlace::array(std::string_view key) const {
  Json::Array const* const items = member(key).items();
  if (items == nullptr) fail_member(key, "a list");
  return *items;
}

Json::Object const& JsonPlace::object(std::string_view key) const {
  Json::Object const* const members = member(key).members();
  if (members == nullptr) fail_member(key, "an object");
  return *members;
}

bool is_inner_path(std::string_view path) {
  if (path.empty() || std::any_of(path.begin(), path.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
      }))
    return false;
  for (std::size_t at = 0; at <= path.size();) {
    std::size_t const end = std::min(path.find('/', at), path.size());
    std::string_view const name = path.substr(at, end - at);
    if (name.empty() || name == "." || name == "..") return false;
    at = end + 1;
  }
  return true;
}

}  // namespace reshard
