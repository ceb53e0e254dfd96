#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/containers/torch/pickle/pickle.hpp"

namespace reshard::pickle {

/// An integer of more bytes than this is refused: no checkpoint needs one, and decimal conversion
/// is quadratic.
inline constexpr std::size_t largest_integer_bytes = 1024;

/// Whether Python would decode the bytes with 'utf-8' and 'surrogatepass', as its unpickler does.
bool is_utf8(std::string_view bytes);

/// One byte per code point; nullopt if a code point is above 255. Pre: is_utf8(text).
std::optional<std::string> latin1_from_utf8(std::string_view text);
std::string utf8_from_latin1(std::string_view bytes);

/// The argument of UNICODE ('V'): \uXXXX and \UXXXXXXXX escapes, every other byte a Latin-1
/// character. nullopt if malformed.
std::optional<std::string> utf8_from_raw_unicode_escape(std::string_view line);

/// The argument of STRING ('S'): a quoted Python 2 str with its backslash escapes undone. nullopt
/// if malformed.
std::optional<std::string> unquoted(std::string_view line);

/// An integer or big_integer node. Pre: bytes is at most largest_integer_bytes long. An empty one
/// is 0.
Node integer_from_little_endian(std::string_view bytes);

/// An integer node from decimal digits with an optional sign; nullopt if malformed or too large.
std::optional<Node> integer_from_decimal(std::string_view digits);

}  // namespace reshard::pickle
