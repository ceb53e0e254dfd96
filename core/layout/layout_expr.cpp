#include "core/layout/layout_expr.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace reshard {
namespace {

using Factor = LayoutExpr::Factor;

// An expression of 4096 characters can cross alternatives into astronomically many names; real ones
// hold fewer than ten.
constexpr std::size_t most_paths = 4096;

/// One choice of an alternative at every '(…|…)': the name it makes, and the digits met on the way.
struct Path {
  std::string name;
  std::vector<LayoutExpr::Digit> digits;
  bool filler = false;  ///< a fill was met: these elements belong to no tensor
};

std::string joined(std::string const& outer, std::string const& inner) {
  if (outer.empty() || inner.empty()) return outer + inner;
  return outer + "." + inner;
}

std::vector<Path> paths_of(std::string const& tag, std::vector<Factor> const& factors);

std::vector<Path> paths_of(Factor const& factor) {
  switch (factor.kind) {
    case Factor::Kind::one: return {Path{}};
    case Factor::Kind::fill: return {Path{"", {}, true}};
    case Factor::Kind::digit: return {Path{"", {factor.digit}, false}};
    case Factor::Kind::alternatives: break;
  }
  std::vector<Path> all;
  for (LayoutExpr::Product const& product : factor.alternatives)
    for (Path& path : paths_of(product.tag, product.factors)) all.push_back(std::move(path));
  return all;
}

std::vector<Path> paths_of(std::string const& tag, std::vector<Factor> const& factors) {
  std::vector<Path> all{Path{tag, {}, false}};
  for (Factor const& factor : factors) {
    std::vector<Path> const inner = paths_of(factor);
    if (all.size() * inner.size() > most_paths)
      fail(ErrorKind::usage, "a layout expression holds more than {} tensors. Split its entry.",
           most_paths);
    std::vector<Path> crossed;
    for (Path const& left : all)
      for (Path const& right : inner) {
        Path path{joined(left.name, right.name), left.digits, left.filler || right.filler};
        path.digits.insert(path.digits.end(), right.digits.begin(), right.digits.end());
        crossed.push_back(std::move(path));
      }
    all = std::move(crossed);
  }
  return all;
}

bool same_part(LayoutExpr::Digit const& a, LayoutExpr::Digit const& b) {
  return a.axis == b.axis && a.mod == b.mod && a.div == b.div;
}

}  // namespace

std::vector<std::string> LayoutExpr::tensors() const {
  std::vector<std::string> names;
  for (Path& path : paths_of(tag, dims))
    if (!path.filler && std::ranges::find(names, path.name) == names.end())
      names.push_back(std::move(path.name));
  return names;
}

std::vector<LayoutExpr::Digit> LayoutExpr::digits_of(std::string_view tensor) const {
  std::vector<Digit> digits;
  for (Path const& path : paths_of(tag, dims)) {
    if (path.filler || path.name != tensor) continue;
    for (Digit const& digit : path.digits)
      if (!digit.repeat &&
          std::ranges::none_of(digits, [&](Digit const& seen) { return same_part(seen, digit); }))
        digits.push_back(digit);
  }
  return digits;
}

}  // namespace reshard
