#include "core/base/text/text.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace reshard {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const replaced = diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

/// Whether a text has all characters of a shorter one in their order, from the first on: "bf16" in
/// "bfloat16".
bool abbreviates(std::string_view shorter, std::string_view text) {
  if (shorter.size() < 3 || shorter.front() != text.front()) return false;
  for (char const c : text)
    if (!shorter.empty() && shorter.front() == c) shorter.remove_prefix(1);
  return shorter.empty();
}

}  // namespace

std::string nearest(std::string_view word, std::span<std::string const> candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (std::string const& candidate : candidates) {
    std::size_t const distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (!best.empty() || word.empty()) return best;
  auto const found = std::ranges::find_if(candidates, [&](std::string const& candidate) {
    return !candidate.empty() && (abbreviates(candidate, word) || abbreviates(word, candidate));
  });
  return found == candidates.end() ? "" : *found;
}

std::string listed(std::span<std::string const> items, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < std::min(items.size(), most); ++i)
    out += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > most) out += fmt::format(", … ({} in all)", items.size());
  return out;
}

std::vector<std::string> parts_between(char separator, std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t const end = std::min(text.find(separator, at), text.size());
    std::string_view const part = text.substr(at, end - at);
    if (std::size_t const first = part.find_first_not_of(' '); first != part.npos)
      parts.emplace_back(part.substr(first, part.find_last_not_of(' ') - first + 1));
    at = end + 1;
  }
  return parts;
}

std::vector<std::string_view> dotted_parts(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= name.size();) {
    std::size_t const end = std::min(name.find('.', at), name.size());
    parts.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

bool matches_glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] == text[t] && pattern[p] != '*'))) {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string without_controls(std::string_view text, std::string_view keep) {
  std::string out;
  for (char const c : text) {
    auto const code = static_cast<unsigned char>(c);
    bool const control = code < 0x20 || code == 0x7f;
    if (control && keep.find(c) == std::string_view::npos)
      out += fmt::format("\\u{:04x}", code);
    else
      out += c;
  }
  return out;
}

}  // namespace reshard
