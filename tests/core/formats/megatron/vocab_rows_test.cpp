#include "core/formats/megatron/mcore/vocab_rows.hpp"

#include <gtest/gtest.h>

#include <set>

namespace reshard::megatron {
namespace {

TEST(RepaddedRows, AreThoseOfEveryVocabularyThatTheRowsCanHold) {
  for (Index from = 1; from <= 6; ++from)
    for (Index to = 1; to <= 8; ++to)
      for (Index rows = from; rows <= 5 * from; rows += from) {
        std::set<Index> sizes;
        for (Index vocab = rows - from + 1; vocab <= rows; ++vocab)
          sizes.insert((vocab + to - 1) / to * to);
        std::optional<Index> const expected =
            sizes.size() == 1 ? std::optional<Index>(*sizes.begin()) : std::nullopt;
        EXPECT_EQ(repadded_rows(rows, from, to), expected) << rows << " " << from << " " << to;
      }
}

TEST(RepaddedRows, AreUnknownWhereTheRowsAreNotPaddedAsStated) {
  EXPECT_EQ(repadded_rows(50257, 128, 128), std::nullopt);
  EXPECT_EQ(repadded_rows(0, 128, 128), std::nullopt);
}

TEST(VocabMultiple, IsMegatronsDefaultTimesTheRanks) {
  Json args = Json::object();
  EXPECT_EQ(vocab_multiple(args, 4), 512);
  args.set("make_vocab_size_divisible_by", 8);
  EXPECT_EQ(vocab_multiple(args, 2), 16);
}

}  // namespace
}  // namespace reshard::megatron
