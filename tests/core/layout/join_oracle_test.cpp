// Random joins, of tilings and of boxes that overlap anyhow, against element-by-element counting.
#include <array>

#include <gtest/gtest.h>

#include "tests/core/layout/random_pieces.hpp"

namespace reshard::test {
namespace {

/// Source piece, source offset, target piece, target offset of one element to copy.
using Moves = std::multiset<std::array<Index, 4>>;

std::multimap<std::vector<Index>, std::pair<Index, Index>> holders(
    RandomTensor const& tensor, std::vector<Piece> const& pieces) {
  std::multimap<std::vector<Index>, std::pair<Index, Index>> all;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    for (auto const& [index, offset] : elements_of(tensor, pieces[i]))
      all.emplace(index, std::pair(static_cast<Index>(i), offset));
  return all;
}

Moves counted(RandomTensor const& tensor, std::vector<Piece> const& src,
              std::vector<Piece> const& dst) {
  auto const targets = holders(tensor, dst);
  Moves moves;
  for (auto const& [index, from] : holders(tensor, src)) {
    auto const [begin, end] = targets.equal_range(index);
    for (auto it = begin; it != end; ++it) {
      auto const& copies = dst[static_cast<std::size_t>(it->second.first)].copies;
      Index const count = copies.empty() ? 1 : copies[0].count;
      for (Index i = 0; i < count; ++i)
        moves.insert({from.first, from.second, it->second.first,
                      it->second.second + (copies.empty() ? 0 : i * copies[0].stride)});
    }
  }
  return moves;
}

void add_moves(Moves& moves, std::array<Index, 4> at, std::span<CopyDim const> dims) {
  if (dims.empty()) {
    moves.insert(at);
    return;
  }
  for (Index i = 0; i < dims[0].count; ++i)
    add_moves(moves, {at[0], at[1] + i * dims[0].src_stride, at[2], at[3] + i * dims[0].dst_stride},
              dims.subspan(1));
}

Moves joined(Join const& result) {
  Moves moves;
  for (std::size_t i = 0; i < result.overlaps.size(); ++i) {
    Overlap const& overlap = result.overlaps[i];
    add_moves(moves, {overlap.src, overlap.src_offset, overlap.dst, overlap.dst_offset},
              merged(result.span_of(i)));
  }
  return moves;
}

std::vector<Piece> random_side(RandomTensor& tensor) {
  std::vector<DigitBox> boxes;
  if (tensor.between(0, 2) > 0)
    boxes = tensor.pieces_of(tensor.everything());
  else
    for (Index count = tensor.between(0, 6); count > 0; --count) boxes.push_back(tensor.any_box());
  std::vector<Piece> pieces;
  for (DigitBox const& box : boxes) {
    pieces.push_back(tensor.piece(box));
    if (tensor.between(0, 9) == 0)
      pieces.back().copies = {{tensor.between(1, 3), tensor.between(1, 99)}};
  }
  return pieces;
}

TEST(JoinOracle, AgreesWithCountingElementByElement) {
  constexpr std::uint32_t first_seed = 51000;
  constexpr std::uint32_t cases = 6000;
  std::printf("seeds %u to %u\n", first_seed, first_seed + cases - 1);
  std::size_t moved = 0;
  for (std::uint32_t seed = first_seed; seed < first_seed + cases; ++seed) {
    std::mt19937 random(seed);
    RandomTensor tensor(random);
    Index volume = 1;
    for (AxisId const axis : tensor.order) volume *= tensor.model.axes[axis].size;
    if (volume > 400) continue;
    std::vector<Piece> const src = random_side(tensor);
    std::vector<Piece> const dst = random_side(tensor);
    Moves const expected = counted(tensor, src, dst);
    moved += expected.size();
    ASSERT_EQ(joined(join(src, dst, tensor.order, tensor.model.axes)), expected) << "seed " << seed;
  }
  EXPECT_GT(moved, 100000U);
}

}  // namespace
}  // namespace reshard::test
