#include "core/mapping/sides/side_part.hpp"

#include <algorithm>
#include <charconv>

namespace reshard {
namespace {

/// Digits as [div, mod) of the axis: neighbours share a bound.
struct Reach {
  Index from = 1;
  Index to = 1;
};

std::optional<Index> number(
    std::string const& text,
    std::function<std::optional<Index>(std::string const&)> const& size_of) {
  Index value = 0;
  char const* const end = text.data() + text.size();
  auto const [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc{} && stop == end) return value;
  return size_of(text);
}

}  // namespace

std::optional<AxisPart> part_left(
    std::span<LayoutExpr::Digit const> digits, Index size, Index unit,
    std::function<std::optional<Index>(std::string const&)> const& size_of) {
  std::vector<Reach> reaches;
  for (LayoutExpr::Digit const& digit : digits) {
    std::optional<Index> const div = digit.div.empty() ? Index{1} : number(digit.div, size_of);
    std::optional<Index> const mod = digit.mod.empty() ? size : number(digit.mod, size_of);
    if (!div || !mod || *div < 1 || *mod < 1) return std::nullopt;
    if (*div < std::min(*mod, size)) reaches.push_back({*div, std::min(*mod, size)});
  }
  std::sort(reaches.begin(), reaches.end(),
            [](Reach const& a, Reach const& b) { return a.from < b.from; });
  reaches.push_back({size, size});
  AxisPart left;
  Index reached = std::min(unit, size);
  for (Reach const& reach : reaches) {
    if (reach.from < reached || (reach.from > reached && left.mod > 1)) return std::nullopt;
    if (reach.from > reached) left = {reach.from, reached};
    reached = reach.to;
  }
  if (left.mod == size)
    left.mod = checked_mul((size - 1) / left.div + 1, left.div, ErrorKind::usage, "an axis' part");
  return left.mod % left.div == 0 ? std::optional<AxisPart>(left) : std::nullopt;
}

}  // namespace reshard
