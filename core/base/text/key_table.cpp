#include "core/base/text/key_table.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "core/base/text/json.hpp"
#include "core/base/text/text.hpp"

namespace reshard::keys {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};
// Largest first, and binary before decimal: printing takes the first that divides.
constexpr std::array<Unit, 9> units = {{{"TiB", 1ULL << 40U},
                                        {"TB", 1'000'000'000'000ULL},
                                        {"GiB", 1ULL << 30U},
                                        {"GB", 1'000'000'000ULL},
                                        {"MiB", 1ULL << 20U},
                                        {"MB", 1'000'000ULL},
                                        {"KiB", 1ULL << 10U},
                                        {"KB", 1'000ULL},
                                        {"B", 1ULL}}};

std::string shortened(std::string_view text) {
  constexpr std::size_t most = 80;
  if (text.size() <= most) return std::string(text);
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U)
    --end;  // not inside a UTF-8 character
  return std::string(text.substr(0, end)) + "...";
}

/// The text of an error: "expected …, found …".
std::string expected(std::string_view what, Value const& value) {
  return fmt::format("expected {}, found {}", what, shown(value));
}

/// Of "a,b" and of ["a", "b"].
std::vector<std::string> texts_between_commas(std::string_view word) {
  if (word.starts_with('[') && word.ends_with(']')) word = word.substr(1, word.size() - 2);
  std::vector<std::string> texts = parts_between(',', word);
  for (std::string& text : texts)
    if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
      text = text.substr(1, text.size() - 2);
  return texts;
}

}  // namespace

std::string shown(Value const& value) {
  if (auto const* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (auto const* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (auto const* word = std::get_if<std::string>(&value)) return json_quoted(shortened(*word));
  if (std::holds_alternative<std::vector<std::string>>(value)) return "an array";
  return std::get<Foreign>(value).what;
}

Value value_from_word(Kind kind, std::string_view word) {
  if (word.size() >= 2 && word.front() == '"' && word.back() == '"')
    return std::string(word.substr(1, word.size() - 2));
  if (kind == Kind::flag && (word == "true" || word == "false")) return word == "true";
  if (kind == Kind::texts) return texts_between_commas(word);
  std::int64_t count = 0;
  char const* const end = word.data() + word.size();
  bool const takes_numbers = kind == Kind::number || kind == Kind::size;
  auto const [rest, problem] = std::from_chars(word.data(), end, count);
  if (takes_numbers && problem == std::errc{} && rest == end) return count;
  return std::string(word);
}

std::optional<std::uint64_t> bytes_from_text(std::string_view text) {
  std::uint64_t count = 0;
  auto const [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (problem != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(rest - text.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  auto const same = [](char a, char b) { return std::tolower(a) == std::tolower(b); };
  std::uint64_t bytes = 0;
  for (Unit const& known : units)
    if (std::ranges::equal(unit, known.name, same) &&
        !__builtin_mul_overflow(count, known.bytes, &bytes) && bytes <= INT64_MAX)
      return bytes;
  if (unit.empty() && !text.ends_with(' ') && count <= INT64_MAX) return count;
  return std::nullopt;
}

std::string text_from_bytes(std::uint64_t bytes) {
  for (Unit const& unit : units)
    if (bytes != 0 && bytes % unit.bytes == 0)
      return fmt::format("{} {}", bytes / unit.bytes, unit.name);
  return "0 B";
}

std::optional<std::string> word_in(std::vector<std::string> const& words, Value const& value) {
  auto const* const text = std::get_if<std::string>(&value);
  auto const* const flag = std::get_if<bool>(&value);
  bool const on = flag != nullptr ? *flag : text != nullptr && *text == "true";
  bool const is_flag = flag != nullptr || (text != nullptr && (on || *text == "false"));
  std::vector<std::string> meant{text != nullptr ? *text : ""};
  if (is_flag)
    meant = on ? std::vector<std::string>{"on", "auto"} : std::vector<std::string>{"off", "never"};
  for (std::string& word : meant)
    if (std::ranges::find(words, word) != words.end()) return std::move(word);
  return std::nullopt;
}

std::string expected_one_of(std::vector<std::string> const& words, Value const& value) {
  auto const* const text = std::get_if<std::string>(&value);
  std::string const near = text == nullptr || text->size() > 64 ? "" : nearest(*text, words);
  return expected("one of " + listed(words), value) +
         (near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
}

std::optional<std::string> read_text(Value const& value, std::string& into) {
  auto const* word = std::get_if<std::string>(&value);
  if (word == nullptr) return expected("a string in double quotes", value);
  for (char const c : *word)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      return "a control character is not allowed here";
  into = *word;
  return std::nullopt;
}

std::optional<std::string> read_texts(Value const& value, std::vector<std::string>& into) {
  std::vector<std::string> texts;
  if (auto const* const list = std::get_if<std::vector<std::string>>(&value))
    texts = *list;
  else if (auto const* const word = std::get_if<std::string>(&value))
    texts.assign(word->empty() ? 0 : 1, *word);
  else
    return expected("an array of strings in double quotes", value);
  for (std::string& text : texts)
    if (auto problem = read_text(Value(text), text)) return problem;
  into = std::move(texts);
  return std::nullopt;
}

std::optional<std::string> read_flag(Value const& value, bool& into) {
  auto const* on = std::get_if<bool>(&value);
  if (on == nullptr) return expected("true or false", value);
  into = *on;
  return std::nullopt;
}

std::optional<std::string> read_size(Value const& value, std::uint64_t& into) {
  std::optional<std::uint64_t> bytes;
  if (auto const* word = std::get_if<std::string>(&value)) bytes = bytes_from_text(*word);
  if (auto const* count = std::get_if<std::int64_t>(&value); count != nullptr && *count > 0)
    bytes = static_cast<std::uint64_t>(*count);
  if (!bytes || *bytes == 0)
    return expected("a size above zero such as \"512 MiB\", \"5 GB\" or a plain number of bytes",
                    value);
  into = *bytes;
  return std::nullopt;
}

std::optional<std::string> read_size_or_auto(Value const& value, std::uint64_t& into) {
  auto const* word = std::get_if<std::string>(&value);
  if (word != nullptr && *word == "auto") {
    into = 0;
    return std::nullopt;
  }
  if (!read_size(value, into)) return std::nullopt;
  return expected("\"auto\" or a size above zero such as \"512 MiB\"", value);
}

std::optional<std::string> read_number(Value const& value, std::int64_t least, std::int64_t most,
                                       std::int64_t& into) {
  auto const* count = std::get_if<std::int64_t>(&value);
  if (count == nullptr) return expected("an integer", value);
  if (*count < least || *count > most)
    return fmt::format("expected a number from {} to {}", least, most);
  into = *count;
  return std::nullopt;
}

std::string text_shown(std::string const& value) { return json_quoted(value); }

std::string texts_shown(std::vector<std::string> const& value) {
  std::string list;
  for (std::string const& text : value) list += (list.empty() ? "" : ", ") + text_shown(text);
  return "[" + list + "]";
}

std::string flag_shown(bool value) { return value ? "true" : "false"; }

std::string size_shown(std::uint64_t bytes) { return json_quoted(text_from_bytes(bytes)); }

std::string size_or_auto_shown(std::uint64_t bytes) {
  return bytes == 0 ? "\"auto\"" : size_shown(bytes);
}

std::string range_text(std::int64_t least, std::int64_t most) {
  return most == std::numeric_limits<std::int64_t>::max() ? fmt::format("{} or more", least)
                                                          : fmt::format("{} to {}", least, most);
}

}  // namespace reshard::keys
