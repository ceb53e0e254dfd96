#include "stages/plan/source/catalog/restride.hpp"

namespace reshard {

void restride(std::vector<Piece>& pieces, std::vector<Index> const& shape,
              std::vector<Index> const& strides) {
  std::vector<Index> packed(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) packed[d - 1] = packed[d] * shape[d];
  auto const moved = [&](Index stride) {
    for (std::size_t d = shape.size(); d-- > 0;)
      if (shape[d] > 1 && stride % packed[d] == 0 && stride < packed[d] * shape[d])
        return stride / packed[d] * strides[d];
    return stride;
  };
  for (Piece& piece : pieces) {
    piece.digits.change([&](PieceDigit& digit) {
      if (digit.count > 1) digit.stride = moved(digit.stride);
    });
    for (PieceCopy& copy : piece.copies) copy.stride = moved(copy.stride);
    Index offset = 0;
    Index left = piece.offset;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      offset += left / packed[d] * strides[d];
      left %= packed[d];
    }
    piece.offset = offset;
  }
}

}  // namespace reshard
