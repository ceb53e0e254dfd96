#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// The candidate nearest to `word` by edit distance, or "" if none is near enough to suggest.
std::string nearest(std::string_view word, std::span<std::string const> candidates);

/// "a, b, c", with "…" after `most` items.
std::string listed(std::span<std::string const> items, std::size_t most = 12);

/// The parts between separators without spaces around them; empty ones are left out.
std::vector<std::string> parts_between(char separator, std::string_view text);

/// "a", "b", "" of "a.b.": the text itself where it has no dot.
std::vector<std::string_view> dotted_parts(std::string_view name);

/// Puts `to` in place of every `from` in the text. Pre: `from` is not empty.
void replace_all(std::string& text, std::string_view from, std::string_view to);

/// '*' matches any run of characters, '?' one; everything else itself.
bool matches_glob(std::string_view pattern, std::string_view text);

/// The text with control characters as \u00XX, except those in `keep`, so that text from a file is
/// safe on a terminal.
std::string without_controls(std::string_view text, std::string_view keep = {});

}  // namespace reshard
