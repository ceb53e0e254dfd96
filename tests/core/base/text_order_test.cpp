#include "core/base/text/text_order.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace reshard {
namespace {

void expect_sorted(std::vector<std::string> const& texts) {
  std::vector<std::uint32_t> expected(texts.size());
  std::iota(expected.begin(), expected.end(), 0U);
  std::ranges::stable_sort(expected, {},
                           [&](std::uint32_t i) { return std::string_view(texts[i]); });
  EXPECT_EQ(text_order(texts.size(), [&](std::size_t i) -> std::string_view { return texts[i]; }),
            expected);
}

TEST(TextOrder, IsThatOfTheBytes) {
  expect_sorted({});
  expect_sorted({"b", "a"});
  expect_sorted({"layers.10", "layers.9", "layers.10.weight", "layers.1", "layers", "", "layers.10",
                 "\xff", "~", "layers.10.bias", "layers.100"});
}

TEST(TextOrder, OfTextsThatBeginAlikeEndInZerosOrAreTheSame) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> texts;
    for (int i = 0; i < 60; ++i) {
      std::string text(std::string(random() % 3 * 7, 'a'));
      for (auto n = random() % 12; n > 0; --n) text += "ab\0\xfe"[random() % 4];
      texts.push_back(random() % 4 == 0 && i > 0 ? texts[random() % texts.size()] : text);
    }
    expect_sorted(texts);
  }
}

}  // namespace
}  // namespace reshard
