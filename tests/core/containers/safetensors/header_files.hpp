#pragma once

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/containers/safetensors/safetensors.hpp"

namespace reshard::safetensors {

/// The bytes of a file: the length, the JSON, and `data_bytes` zeros.
inline std::string file_text(std::string_view json, std::size_t data_bytes = 0) {
  std::uint64_t const length = json.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text.append(json).append(data_bytes, '\0');
}

inline Header parse(std::string_view file) {
  return parse_header(std::as_bytes(std::span(file)), file.size(), "model.safetensors");
}

/// The sentence with which a file is refused; nothing when it is accepted. An Error of another kind
/// than source fails the test.
inline std::optional<Error> refusal(std::string_view file) {
  try {
    parse(file);
  } catch (Error const& error) {
    return error;
  }
  return std::nullopt;
}

/// {"a":{"dtype":…,"shape":…,"data_offsets":…}} with the three values as text.
inline std::string one_tensor(std::string_view dtype, std::string_view shape,
                              std::string_view offsets) {
  return fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

}  // namespace reshard::safetensors
