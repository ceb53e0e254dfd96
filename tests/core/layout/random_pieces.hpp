#pragma once

#include <map>
#include <random>

#include "tests/core/layout/model.hpp"

namespace reshard::test {

/// A box over digits of all axes of a random tensor, one interval per digit.
using DigitBox = std::vector<reshard::Run>;

/// A logical tensor of two to four small axes, each with a chain of nested digits.
class RandomTensor {
 public:
  struct Digit {
    AxisId axis = 0;
    Index mod = 0;
    Index div = 1;
    Index extent() const { return mod / div; }
  };

  explicit RandomTensor(std::mt19937& random);

  Model model{};
  std::vector<AxisId> order;
  std::vector<Digit> digits;  ///< axis by axis, coarsest first

  DigitBox everything() const;
  /// Every box possible, none of them empty.
  DigitBox any_box();
  /// Cuts a box into boxes that tile it.
  std::vector<DigitBox> pieces_of(DigitBox const& box);
  /// The box as a piece with random strides; digits of one axis that are one interval together may
  /// become one digit.
  Piece piece(DigitBox const& box);
  Index between(Index least, Index most) {
    return std::uniform_int_distribution<Index>(least, most)(random_);
  }

 private:
  std::mt19937& random_;
};

/// The offsets of all elements of a piece (copy 0) by logical index, one value per axis of `order`.
std::multimap<std::vector<Index>, Index> elements_of(RandomTensor const& tensor,
                                                     Piece const& piece);

}  // namespace reshard::test
