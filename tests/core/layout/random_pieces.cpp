#include "tests/core/layout/random_pieces.hpp"

namespace reshard::test {

RandomTensor::RandomTensor(std::mt19937& random) : random_(random) {
  for (Index axis = between(1, 4); axis > 0; --axis) {
    std::vector<Index> radices{1};
    for (Index more = between(0, 2); more > 0; --more)
      radices.push_back(radices.back() * between(2, 3));
    Index const size = radices.back() * between(1, 3);
    AxisId const id = model.axes.add(fmt::format("a{}", model.axes.size()), size);
    order.push_back(id);
    digits.push_back({id, size, radices.back()});
    for (std::size_t i = radices.size(); i-- > 1;)
      digits.push_back({id, radices[i], radices[i - 1]});
  }
}

DigitBox RandomTensor::everything() const {
  DigitBox box;
  for (Digit const& digit : digits) box.push_back({0, digit.extent(), false});
  return box;
}

DigitBox RandomTensor::any_box() {
  DigitBox box = everything();
  for (reshard::Run& run : box) {
    Index const begin = between(0, run.end - 1);
    run = {begin, between(begin + 1, run.end), false};
  }
  return box;
}

std::vector<DigitBox> RandomTensor::pieces_of(DigitBox const& box) {
  auto const k = static_cast<std::size_t>(between(0, std::ssize(box) - 1));
  if (box[k].end - box[k].begin < 2 || between(0, 3) == 0) return {box};
  DigitBox left = box;
  DigitBox right = box;
  left[k].end = right[k].begin = between(box[k].begin + 1, box[k].end - 1);
  std::vector<DigitBox> all = pieces_of(left);
  for (DigitBox& more : pieces_of(right)) all.push_back(std::move(more));
  return all;
}

Piece RandomTensor::piece(DigitBox const& box) {
  std::vector<PieceDigit> chosen;
  for (std::size_t k = 0; k < digits.size(); ++k) {
    PieceDigit const next{
        digits[k].axis, digits[k].mod, digits[k].div, box[k].begin, box[k].end - box[k].begin, 0};
    PieceDigit* const last = chosen.empty() ? nullptr : &chosen.back();
    bool const is_one_interval = last != nullptr && last->axis == next.axis &&
                                 (last->count == 1 || next.count == digits[k].extent());
    if (is_one_interval && between(0, 1) == 1) {
      last->first = last->first * digits[k].extent() + next.first;
      last->count = last->count * next.count;
      last->div = next.div;
    } else {
      chosen.push_back(next);
    }
  }
  std::ranges::shuffle(chosen, random_);
  for (PieceDigit& digit : chosen) digit.stride = between(0, 1000);
  Piece piece;
  piece.digits = chosen;
  piece.offset = between(0, 1000);
  return piece;
}

std::multimap<std::vector<Index>, Index> elements_of(RandomTensor const& tensor,
                                                     Piece const& piece) {
  std::multimap<std::vector<Index>, Index> elements;
  std::vector<Index> at(piece.digits.size(), 0);
  for (PieceDigit const& digit : piece.digits)
    if (digit.count <= 0) return elements;
  for (;;) {
    std::vector<Index> index(tensor.order.size(), 0);
    Index offset = piece.offset;
    for (std::size_t k = 0; k < at.size(); ++k) {
      index[piece.digits[k].axis] += (piece.digits[k].first + at[k]) * piece.digits[k].div;
      offset += at[k] * piece.digits[k].stride;
    }
    elements.emplace(index, offset);
    std::size_t k = 0;
    while (k < at.size() && ++at[k] == piece.digits[k].count) at[k++] = 0;
    if (k == at.size()) return elements;
  }
}

}  // namespace reshard::test
