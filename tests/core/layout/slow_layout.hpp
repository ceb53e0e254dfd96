#pragma once

#include <string>
#include <vector>

#include "tests/core/layout/model.hpp"

namespace reshard::test {

/// The meaning of a stored tensor, one element at a time, straight from the definition: the slow,
/// obvious version.
class SlowLayout {
 public:
  SlowLayout(LayoutExpr const& expr, Model const& model, Shares const& shares)
      : expr_(expr), model_(model), shares_(shares) {}

  std::vector<Index> shape() const;
  /// "fill", or the tensor and the value of every digit: "x.q 0/6/2=1 1/3/1=0".
  std::string at(std::vector<Index> const& index) const;

 private:
  struct Meaning {
    std::string name;
    std::vector<std::string> digits;
    bool fill = false;
  };

  /// The value of every stored index of a digit; -1 is padding.
  std::vector<Index> values(LayoutExpr::Digit const& digit) const;
  Index count(std::string const& text) const;
  Index extent(LayoutExpr::Factor const& factor) const;
  Index extent(std::vector<LayoutExpr::Factor> const& factors) const;
  void explain(LayoutExpr::Factor const& factor, Index index, Meaning& meaning) const;
  void explain(std::string const& tag, std::vector<LayoutExpr::Factor> const& factors, Index index,
               Meaning& meaning) const;

  LayoutExpr const& expr_;
  Model const& model_;
  Shares const& shares_;
};

/// How SlowLayout writes a digit of a piece with this value.
std::string digit_text(PieceDigit const& digit, Index value);
/// And an element: the tensor and its digits in any order.
std::string element_text(std::string const& name, std::vector<std::string> digits);

}  // namespace reshard::test
