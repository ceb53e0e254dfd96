#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/text/json.hpp"

namespace reshard {

/// One JSON object of a file; every Error names the file and the place in it.
struct JsonPlace {
  std::string const& file;
  std::string place;  ///< "tensors[3]"; "" for the document
  Json const& value;

  /// Errors of kind source when the member is missing or of another type.
  std::string const& text(std::string_view key) const;
  std::int64_t number(std::string_view key) const;
  Json::Array const& array(std::string_view key) const;
  Json::Object const& object(std::string_view key) const;
  Json const& member(std::string_view key) const;

  [[noreturn]] void fail_member(std::string_view key, std::string_view wanted) const;
};

/// A path of a file inside a checkpoint: relative, names joined by '/', none of them empty, "." or
/// "..", no control characters.
bool is_inner_path(std::string_view path);

}  // namespace reshard
