#include "stages/plan/change/index_list.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

using Indices = std::vector<Index>;

std::string refused(std::function<void()> const& work) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.sentence();
  }
  return {};
}

TEST(IndexList, HasIndicesAndRanges) {
  EXPECT_EQ(index_list("5", 6, "key", "layers"), Indices{5});
  EXPECT_EQ(index_list("0-2,4 - 5", 6, "key", "layers"), (Indices{0, 1, 2, 4, 5}));
  EXPECT_EQ(index_list(" 3-3 ", 6, "key", "layers"), Indices{3});
}

TEST(IndexList, RefusesOthersWithTheItem) {
  auto const of = [](char const* text) {
    return refused([&] { (void)index_list(text, 6, "key", "layers"); });
  };
  for (char const* text : {"x", "1-", "-1", "1--2", "+1", "1.5", "0x1", "99999999999999999999"})
    EXPECT_NE(of(text).find("is neither an index nor a range"), std::string::npos) << text;
  for (char const* text : {"2, 1", "1, 1", "0-3, 3", "3-1"})
    EXPECT_NE(of(text).find("does not ascend"), std::string::npos) << text;
  EXPECT_EQ(
      of("2-6"),
      "key: '2-6' names number 6, and there are 6 layers, counted from 0. Leave out the others.");
  EXPECT_EQ(of(""), "key: the list is empty. Name at least one of the layers.");
}

TEST(KeptExperts, AreThoseOfEveryLayerThatHasSome) {
  std::vector<bool> const has = {false, true, true};
  EXPECT_EQ(kept_experts("1-2", 4, has, "key"),
            (std::vector<Indices>{{}, Indices{1, 2}, Indices{1, 2}}));
  EXPECT_EQ(kept_experts("1: 0-1; 2: 0, 3", 4, has, "key"),
            (std::vector<Indices>{{}, Indices{0, 1}, Indices{0, 3}}));
}

TEST(KeptExperts, AreAsManyInEachLayer) {
  std::vector<bool> const has = {false, true, true};
  auto const of = [&](char const* text) {
    return refused([&] { (void)kept_experts(text, 4, has, "key"); });
  };
  EXPECT_NE(of("1: 0-1; 2: 0").find("layer 1 keeps 2 experts and layer 2 keeps 1"),
            std::string::npos);
  EXPECT_NE(of("0: 0").find("layer 0 has no routed experts"), std::string::npos);
  EXPECT_NE(of("1: 0; 1: 0").find("layer 1 is named twice"), std::string::npos);
  EXPECT_NE(of("1: 0").find("layer 2 has experts and is not named"), std::string::npos);
  EXPECT_NE(of("1: 0; 2").find("'2' names no layers"), std::string::npos);
  EXPECT_NE(of("4").find("there are 4 experts"), std::string::npos);
}

}  // namespace
}  // namespace reshard
