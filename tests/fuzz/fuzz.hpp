#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/error.hpp"

/// What the fuzz targets share. A target is LLVMFuzzerTestOneInput: a parser may refuse the bytes
/// with an Error of the kind it promises, or accept them; whatever else happens is a finding. Of an
/// accepted input a property is checked: it survives being written and read again, what it says
/// lies inside the file, …
namespace reshard::fuzz {

/// Ends the program, so that the fuzzer keeps the input. (An exception might be caught by what is
/// tested.)
#define FUZZ_EXPECT(condition)                                                                     \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      std::fprintf(stderr, "%s:%d: property does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                                \
    }                                                                                              \
  } while (false)

/// How many inputs were accepted so far: the replay test asks whether its corpus reaches behind the
/// parser.
inline std::uint64_t accepted_inputs = 0;

inline std::string_view text_of(std::uint8_t const* data, std::size_t size) {
  return {reinterpret_cast<char const*>(data), size};
}
inline std::span<std::byte const> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// What `parse` returns; nothing when it refuses with an Error of this kind. Another kind, or an
/// exception that is no Error, is a finding.
template <std::invocable Parse>
auto attempt(ErrorKind kind, Parse&& parse) -> std::optional<decltype(parse())> {
  try {
    return std::forward<Parse>(parse)();
  } catch (Error const& error) {
    if (error.kind() != kind || error.sentence().empty())
      std::fprintf(stderr, "kind %d: %s\n", exit_code(error.kind()), error.what());
    FUZZ_EXPECT(error.kind() == kind && !error.sentence().empty());
    return std::nullopt;
  }
}

/// The same for the parser that a target is about.
template <std::invocable Parse>
auto accepted(ErrorKind kind, Parse&& parse) {
  auto result = attempt(kind, std::forward<Parse>(parse));
  if (result) ++accepted_inputs;
  return result;
}

}  // namespace reshard::fuzz
