#include "core/formats/deepspeed/flat_parts.hpp"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace reshard::deepspeed {
namespace {

using Ranks = std::vector<std::vector<FlatPart>>;

TEST(DeepSpeedFlatParts, AreThoseOfTheExamples) {
  std::vector<Index> const elements{35, 21};
  EXPECT_EQ(joined_parts(elements, 2), (Ranks{{{0, 0, 28, 0}}, {{0, 28, 35, 0}, {1, 0, 21, 7}}}));
  EXPECT_EQ(split_parts(elements, 2),
            (Ranks{{{0, 0, 18, 0}, {1, 0, 11, 18}}, {{0, 18, 35, 0}, {1, 11, 21, 18}}}));
  EXPECT_EQ(split_size(elements, 2), 29);
}

TEST(DeepSpeedFlatParts, LeaveOutWhatIsEmpty) {
  EXPECT_EQ(joined_parts(std::vector<Index>{0, 3}, 1), (Ranks{{{1, 0, 3, 0}}}));
  EXPECT_EQ(joined_parts({}, 3), Ranks(3));
  EXPECT_EQ(split_parts(std::vector<Index>{1}, 3), (Ranks{{{0, 0, 1, 0}}, {}, {}}));
}

/// An element of a parameter, in the order of all parameters; -1 for padding.
std::vector<Index> with_padding(Index elements, Index multiple, Index first) {
  std::vector<Index> result(
      static_cast<std::size_t>((elements + multiple - 1) / multiple * multiple), -1);
  for (Index i = 0; i < elements; ++i) result[static_cast<std::size_t>(i)] = first + i;
  return result;
}

/// The vectors of all ranks with the elements that `parts` put there.
std::vector<std::vector<Index>> filled(Ranks const& parts, std::vector<Index> const& elements,
                                       std::size_t length) {
  std::vector<Index> starts{0};
  for (Index const count : elements) starts.push_back(starts.back() + count);
  std::vector<std::vector<Index>> result(parts.size(), std::vector<Index>(length, -1));
  for (std::size_t rank = 0; rank < parts.size(); ++rank)
    for (FlatPart const& part : parts[rank])
      for (Index e = part.begin; e < part.end; ++e)
        result[rank].at(static_cast<std::size_t>(part.at + e - part.begin)) =
            starts[part.parameter] + e;
  return result;
}

/// What torch does, element by element: concatenate, pad, cut.
TEST(DeepSpeedFlatParts, AgreeWithVectorsThatAreReallyCut) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Index const ranks = std::uniform_int_distribution<Index>(1, 9)(random);
    std::vector<Index> elements(random() % 6);
    Index all = 0;
    for (Index& count : elements)
      all += count = std::uniform_int_distribution<Index>(0, 40)(random);
    std::vector<Index> const joined = with_padding(all, 2 * ranks, 0);
    std::size_t const part = joined.size() / static_cast<std::size_t>(ranks);
    std::vector<std::vector<Index>> expected;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank)
      expected.emplace_back(joined.begin() + static_cast<std::ptrdiff_t>(rank * part),
                            joined.begin() + static_cast<std::ptrdiff_t>((rank + 1) * part));
    EXPECT_EQ(filled(joined_parts(elements, ranks), elements, part), expected);

    std::vector<std::vector<Index>> pieces(static_cast<std::size_t>(ranks));
    Index first = 0;
    for (Index const count : elements) {
      std::vector<Index> const padded = with_padding(count, ranks, first);
      std::size_t const size = padded.size() / pieces.size();
      for (std::size_t rank = 0; rank < pieces.size(); ++rank)
        pieces[rank].insert(pieces[rank].end(),
                            padded.begin() + static_cast<std::ptrdiff_t>(rank * size),
                            padded.begin() + static_cast<std::ptrdiff_t>((rank + 1) * size));
      first += count;
    }
    auto const size = static_cast<std::size_t>(split_size(elements, ranks));
    EXPECT_EQ(filled(split_parts(elements, ranks), elements, size), pieces);
  }
}

}  // namespace
}  // namespace reshard::deepspeed
