#include "core/base/text/json.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <simdjson.h>

namespace reshard {
namespace {

constexpr int deepest = 64;

// The memory that a document may take: a value takes up to value_bytes, and each follows one of
// ",:[{" (those inside texts count as well). Ordinary documents have names and numbers of several
// digits; one that is all punctuation is made to fill the memory.
constexpr std::uint64_t value_bytes = 64;
constexpr std::uint64_t free_bytes = std::uint64_t{64} << 20U;
constexpr std::uint64_t bytes_per_byte = 16;

void check_cost(std::string_view text, std::string_view place) {
  std::uint64_t values = 0;
  for (char const c : text) values += c == ',' || c == ':' || c == '[' || c == '{' ? 1U : 0U;
  if (values * value_bytes <= free_bytes + bytes_per_byte * text.size()) return;
  fail(ErrorKind::source,
       "{}: {} values in {} bytes of JSON: a valid document has fewer. The file is "
       "damaged.",
       place, values, text.size());
}

/// Sorts instead of hashing: keys can be made to have one hash.
void check_keys(Json::Object const& members, std::string_view place) {
  std::vector<std::string_view> keys;
  keys.reserve(members.size());
  for (auto const& [key, value] : members) keys.push_back(key);
  std::ranges::sort(keys);
  auto const twice = std::ranges::adjacent_find(keys);
  if (twice != keys.end())
    fail(ErrorKind::source, "{}: the key {} appears twice in one JSON object. Keep one of them.",
         place, json_quoted(*twice));
}

Json from_element(simdjson::dom::element element, std::string_view place, int depth) {
  if (depth > deepest)
    fail(ErrorKind::source, "{}: JSON nested deeper than {} levels. The file is damaged.", place,
         deepest);
  using Type = simdjson::dom::element_type;
  switch (element.type()) {
    case Type::NULL_VALUE: return {};
    case Type::BOOL: return Json(bool{element});
    case Type::INT64: return Json(std::int64_t{element});
    case Type::UINT64: return Json(static_cast<double>(std::uint64_t{element}));
    case Type::DOUBLE: return Json(double{element});
    case Type::STRING: return Json(std::string_view{element});
    case Type::ARRAY: {
      Json::Array items;
      simdjson::dom::array const array = element;
      items.reserve(array.size());
      for (auto item : array) items.push_back(from_element(item, place, depth + 1));
      return Json(std::move(items));
    }
    case Type::OBJECT: {
      Json::Object members;
      simdjson::dom::object const object = element;
      members.reserve(object.size());
      for (auto member : object)
        members.emplace_back(std::string(member.key), from_element(member.value, place, depth + 1));
      check_keys(members, place);
      return Json(std::move(members));
    }
  }
  return {};
}

void newline(std::string& out, int indent, int level) {
  if (indent == 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(level), ' ');
}

void write(std::string& out, Json const& value, int indent, int level) {
  if (value.is_null()) {
    out += "null";
  } else if (auto const* boolean = value.boolean()) {
    out += *boolean ? "true" : "false";
  } else if (auto const* integer = value.integer()) {
    out += fmt::format("{}", *integer);
  } else if (auto const* real = value.real()) {
    std::string const digits = std::isfinite(*real) ? fmt::format("{}", *real) : "null";
    out += digits;
    if (digits.find_first_not_of("-0123456789") == std::string::npos)
      out += ".0";  // else it would be read as an integer
  } else if (auto const* text = value.text()) {
    append_json_quoted(out, *text);
  } else if (auto const* items = value.items()) {
    out += '[';
    for (std::size_t i = 0; i < items->size(); ++i) {
      if (i != 0) out += indent == 0 ? ", " : ",";
      newline(out, indent, level + 1);
      write(out, (*items)[i], indent, level + 1);
    }
    if (!items->empty()) newline(out, indent, level);
    out += ']';
  } else if (auto const* members = value.members()) {
    out += '{';
    for (std::size_t i = 0; i < members->size(); ++i) {
      if (i != 0) out += indent == 0 ? ", " : ",";
      newline(out, indent, level + 1);
      append_json_quoted(out, (*members)[i].first);
      out += ": ";
      write(out, (*members)[i].second, indent, level + 1);
    }
    if (!members->empty()) newline(out, indent, level);
    out += '}';
  }
}

}  // namespace

Json const* Json::find(std::string_view key) const {
  auto const* object = members();
  if (object == nullptr) return nullptr;
  for (auto const& [name, value] : *object)
    if (name == key) return &value;
  return nullptr;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  auto& object = std::get<Object>(value_);
  for (auto& [name, old] : object) {
    if (name != key) continue;
    old = std::move(value);
    return *this;
  }
  object.emplace_back(std::string(key), std::move(value));
  return *this;
}

Json& Json::push(Json value) {
  if (is_null()) value_ = Array{};
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, *this, indent, 0);
  return out;
}

Json parse_json(std::string_view text, std::string_view place) {
  check_cost(text, place);
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  auto const error = parser.parse(text.data(), text.size()).get(element);
  if (error == simdjson::NUMBER_ERROR)
    fail(ErrorKind::source,
         "{}: has a malformed number, or one that does not fit in 64 bits. Correct it, or compare "
         "the file with the original.",
         place);
  if (error != simdjson::SUCCESS)
    fail(ErrorKind::source,
         "{}: is not valid JSON: {}. The file is damaged: compare it with the original.", place,
         simdjson::error_message(error));
  return from_element(element, place, 0);
}

std::string json_quoted(std::string_view text) {
  std::string out;
  append_json_quoted(out, text);
  return out;
}

void append_json_quoted(std::string& out, std::string_view text) {
  out += '"';
  if (std::ranges::all_of(text,
                          [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; })) {
    out += text;
    out += '"';
    return;
  }
  for (char const c : valid_utf8(text)) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        else
          out += c;
    }
  }
  out += '"';
}

std::string valid_utf8(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return std::string(text);
  constexpr std::size_t longest_character = 4;
  std::string out;
  while (!text.empty()) {
    std::size_t length = 1;
    while (length < std::min(longest_character, text.size()) &&
           !simdjson::validate_utf8(text.data(), length))
      ++length;
    bool const valid = simdjson::validate_utf8(text.data(), length);
    if (valid)
      out += text.substr(0, length);
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    text.remove_prefix(valid ? length : 1);
  }
  return out;
}

}  // namespace reshard
