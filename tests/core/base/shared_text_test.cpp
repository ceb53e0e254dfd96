#include "core/base/text/shared_text.hpp"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace reshard {
namespace {

TEST(SharedText, IsItsText) {
  SharedText const name = "decoder.layers.0.mlp.linear_fc1.weight";
  EXPECT_EQ(name, "decoder.layers.0.mlp.linear_fc1.weight");
  EXPECT_EQ(name, SharedText(std::string(name)));
  EXPECT_NE(name, SharedText("decoder"));
  EXPECT_LT(SharedText("a"), SharedText("b"));
  EXPECT_LT(SharedText("a"), "b");
  EXPECT_TRUE(name.starts_with("decoder."));
  EXPECT_TRUE(name.ends_with(".weight"));
  EXPECT_EQ(name.find("mlp"), 17U);
  EXPECT_EQ(name.substr(0, 7), "decoder");
  EXPECT_EQ(fmt::format("{:>3}|{}", SharedText("a"), name), "  a|" + name.text());
  EXPECT_EQ("x" + SharedText("y") + "z", "xyz");
  std::map<std::string, int, std::less<>> const numbers{{"one", 1}};
  EXPECT_TRUE(numbers.contains(SharedText("one")));
}

TEST(SharedText, TheEmptyOneIsTheDefault) {
  EXPECT_EQ(SharedText(), "");
  EXPECT_EQ(SharedText(""), SharedText());
  EXPECT_TRUE(SharedText("").empty());
}

TEST(SharedText, CopiesAreOneText) {
  SharedText a = "norm.weight";
  SharedText const b = std::string("norm.") + "weight";
  EXPECT_EQ(&a.text(), &b.text());
  SharedText const moved = std::move(a);
  EXPECT_EQ(&moved.text(), &b.text());
  a = moved;
  EXPECT_EQ(&a.text(), &b.text());
}

TEST(SharedText, IsFoundAfterOthersAreGivenBack) {
  std::vector<SharedText> held;
  for (int i = 0; i < 20'000; ++i) held.emplace_back(fmt::format("experts.{}", i));
  for (std::size_t i = 0; i < held.size(); ++i)
    if (i % 3 != 0) held[i] = SharedText();
  for (std::size_t i = 0; i < held.size(); i += 3) {
    SharedText const again = fmt::format("experts.{}", i);
    ASSERT_EQ(&again.text(), &held[i].text());
    ASSERT_EQ(again.hash(), held[i].hash());
  }
}

TEST(SharedText, MayBeTakenAndGivenBackByManyThreads) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 20'000; ++i) {
        SharedText const text = std::to_string(i % 7);
        SharedText const copy = text;
        ASSERT_EQ(copy, std::to_string(i % 7));
      }
    });
}

}  // namespace
}  // namespace reshard
