#pragma once

#include <string>
#include <string_view>

namespace reshard {

/// The text in zlib's format (RFC 1950), which browsers call "deflate". Equal texts give equal
/// bytes.
std::string deflated(std::string_view text);

/// Base64 (RFC 4648), with padding.
std::string base64(std::string_view bytes);

}  // namespace reshard
