#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/error.hpp"

namespace reshard {

/// A JSON value. Objects keep the order in which members were added or read, so output is
/// deterministic.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() = default;  ///< null
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(std::uint64_t value) : value_(static_cast<std::int64_t>(value)) {}
  Json(double value) : value_(value) {}
  Json(char const* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool const* boolean() const { return std::get_if<bool>(&value_); }
  std::int64_t const* integer() const { return std::get_if<std::int64_t>(&value_); }
  double const* real() const { return std::get_if<double>(&value_); }
  std::string const* text() const { return std::get_if<std::string>(&value_); }
  Array const* items() const { return std::get_if<Array>(&value_); }
  Array* items() { return std::get_if<Array>(&value_); }
  Object const* members() const { return std::get_if<Object>(&value_); }
  Object* members() { return std::get_if<Object>(&value_); }

  /// The member of an object, or nullptr when this is no object or has no such member.
  Json const* find(std::string_view key) const;
  /// Sets or replaces a member; a null value becomes an object first.
  Json& set(std::string_view key, Json value);
  /// Appends to an array; a null value becomes an array first.
  Json& push(Json value);

  /// `indent` 0: one line; else that many spaces a level. Ends without a newline.
  std::string dump(int indent = 0) const;

  friend bool operator==(Json const&, Json const&) = default;

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

/// Parses one complete JSON document. Duplicate keys, invalid UTF-8, trailing text and nesting
/// deeper than 64 are Errors of kind source that begin with `place`.
Json parse_json(std::string_view text, std::string_view place);

/// A string as JSON writes it, quotes included; control characters are escaped. Also safe to show
/// on a terminal.
std::string json_quoted(std::string_view text);
/// Appends json_quoted(text) to `out`.
void append_json_quoted(std::string& out, std::string_view text);

/// The text with every byte that is not part of valid UTF-8 written as "\xNN", so that JSON can
/// contain it. File names may be any bytes.
std::string valid_utf8(std::string_view text);

}  // namespace reshard
