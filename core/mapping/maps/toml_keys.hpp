#pragma once

#include <cstddef>
#include <string_view>

namespace reshard {

/// More parts of a key ("a.b.c" has three) than any file of ours has. The TOML library makes a
/// table in a table for each, and tables that are too deep end the program when they are destroyed;
/// it bounds brackets itself.
inline constexpr std::size_t most_key_parts = 64;

/// The most parts that a key of this text has, as a TOML parser would cut it. Pre: none; of a text
/// that is no TOML it is any number.
std::size_t longest_key(std::string_view toml);

}  // namespace reshard
