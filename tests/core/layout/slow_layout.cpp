#include "tests/core/layout/slow_layout.hpp"

namespace reshard::test {

using Factor = LayoutExpr::Factor;

std::string digit_text(PieceDigit const& digit, Index value) {
  return fmt::format("{}/{}/{}={}", digit.axis, digit.mod, digit.div, value);
}

std::string element_text(std::string const& name, std::vector<std::string> digits) {
  std::ranges::sort(digits);
  std::string text = name;
  for (std::string const& digit : digits) text += " " + digit;
  return text;
}

Index SlowLayout::count(std::string const& text) const {
  return text.empty() ? 1 : std::stoll(text);
}

std::vector<Index> SlowLayout::values(LayoutExpr::Digit const& digit) const {
  AxisId const axis = model_.axis(digit.axis);
  Index const size = model_.axes[axis].size;
  Index const div = count(digit.div);
  std::vector<Index> result;
  if (!digit.mod.empty() && count(digit.mod) != size) {
    for (Index value = 0; value < count(digit.mod) / div; ++value) result.push_back(value);
    return result;
  }
  Share const* const share = shares_.find(axis);
  for (Run const& run : share == nullptr ? Share{{0, size, false}} : *share)
    for (Index i = run.begin; i < run.end; ++i)
      if ((run.fill ? i - run.begin : i) % div == 0) result.push_back(run.fill ? -1 : i / div);
  return result;
}

Index SlowLayout::extent(Factor const& factor) const {
  switch (factor.kind) {
    case Factor::Kind::one: return 1;
    case Factor::Kind::fill: return count(factor.count);
    case Factor::Kind::digit: return std::ssize(values(factor.digit));
    case Factor::Kind::alternatives: break;
  }
  Index sum = 0;
  for (LayoutExpr::Product const& product : factor.alternatives) sum += extent(product.factors);
  return sum;
}

Index SlowLayout::extent(std::vector<Factor> const& factors) const {
  Index product = 1;
  for (Factor const& factor : factors) product *= extent(factor);
  return product;
}

std::vector<Index> SlowLayout::shape() const {
  std::vector<Index> shape;
  for (Factor const& factor : expr_.dims) shape.push_back(extent(factor));
  return shape;
}

void SlowLayout::explain(Factor const& factor, Index index, Meaning& meaning) const {
  if (factor.kind == Factor::Kind::fill) meaning.fill = true;
  if (factor.kind == Factor::Kind::digit) {
    Index const value = values(factor.digit)[static_cast<std::size_t>(index)];
    Index const size = model_.axes[model_.axis(factor.digit.axis)].size;
    Index const div = count(factor.digit.div);
    Index const mod = factor.digit.mod.empty() ? size : count(factor.digit.mod);
    if (value < 0) meaning.fill = true;
    if (!factor.digit.repeat)
      meaning.digits.push_back(digit_text(
          {model_.axis(factor.digit.axis), (mod + div - 1) / div * div, div, 0, 1, 0}, value));
  }
  for (LayoutExpr::Product const& product : factor.alternatives) {
    Index const size = extent(product.factors);
    if (index >= 0 && index < size) explain(product.tag, product.factors, index, meaning);
    index -= size;
  }
}

void SlowLayout::explain(std::string const& tag, std::vector<Factor> const& factors, Index index,
                         Meaning& meaning) const {
  if (!tag.empty()) meaning.name += (meaning.name.empty() ? "" : ".") + tag;
  Index rest = extent(factors);
  for (Factor const& factor : factors) {
    rest /= extent(factor);
    explain(factor, index / rest, meaning);
    index %= rest;
  }
}

std::string SlowLayout::at(std::vector<Index> const& index) const {
  Meaning meaning;
  meaning.name = expr_.tag;
  for (std::size_t d = 0; d < index.size(); ++d) explain(expr_.dims[d], index[d], meaning);
  return meaning.fill ? "fill" : element_text(meaning.name, meaning.digits);
}

}  // namespace reshard::test
