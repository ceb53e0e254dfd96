#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <toml++/toml.h>

#include "core/base/error.hpp"
#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// The members of a table in the order in which they were written (toml++ sorts them by key).
inline std::vector<std::pair<std::string, toml::node const*>> written_order(
    toml::table const& table) {
  std::vector<std::pair<std::string, toml::node const*>> members;
  for (auto const& [key, node] : table) members.emplace_back(std::string(key.str()), &node);
  std::stable_sort(members.begin(), members.end(), [](auto const& a, auto const& b) {
    auto const x = a.second->source().begin;
    auto const y = b.second->source().begin;
    return x.line != y.line ? x.line < y.line : x.column < y.column;
  });
  return members;
}

/// Values of a map's TOML; mistakes are Errors of kind usage with file and line.
class MapReader {
 public:
  explicit MapReader(std::string_view file_name) : file_name_(file_name) {}

  std::string place(toml::node const& node) const {
    return fmt::format("{}:{}", file_name_, node.source().begin.line);
  }

  [[noreturn]] void mistake(toml::node const& node, std::string const& sentence) const {
    fail(ErrorKind::usage, "{}: {}", place(node), sentence);
  }

  std::string text(toml::node const& node, std::string_view what) const {
    if (auto const* value = node.as_string()) return value->get();
    mistake(node, fmt::format("{} must be a string. Put it in quotes.", what));
  }

  toml::table const& table(toml::node const& node, std::string_view what) const {
    if (auto const* value = node.as_table()) return *value;
    mistake(node, fmt::format("{} must be a table.", what));
  }

  std::vector<std::string> texts(toml::node const& node, std::string_view what) const {
    std::vector<std::string> result;
    if (auto const* array = node.as_array()) {
      for (auto const& item : *array) result.push_back(text(item, what));
    } else {
      result.push_back(text(node, what));
    }
    return result;
  }

  /// A string is an expression; an integer or a boolean stands for itself.
  Expression expression(toml::node const& node) const {
    if (auto const* number = node.as_integer())
      return Expression::parse(fmt::format("{}", number->get()), place(node));
    if (auto const* flag = node.as_boolean())
      return Expression::parse(flag->get() ? "true" : "false", place(node));
    return Expression::parse(text(node, "an expression"), place(node));
  }

  bool flag(toml::node const& node, std::string_view what) const {
    if (auto const* value = node.as_boolean()) return value->get();
    mistake(node, fmt::format("{} must be true or false.", what));
  }

 private:
  std::string file_name_;
};

/// A table of [adapter].
MapAdapter read_adapter(MapReader const& reader, std::string const& name, toml::node const& node);

/// A table of [quant].
MapQuant read_quant(MapReader const& reader, std::string const& name, toml::node const& node);

}  // namespace reshard
