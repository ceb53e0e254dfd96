#include "core/base/text/json_root.hpp"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace reshard {
namespace {

constexpr std::array<std::string_view, 2> long_members = {"tensors", "files"};

/// The items of "tensors", as JSON.
std::vector<std::string> tensors_of(std::string_view text) {
  JsonRoot const root(text, "x.json", long_members, '[');
  std::vector<std::string> items;
  EXPECT_TRUE(root.items("tensors", [&](std::size_t number, Json const& item) {
    EXPECT_EQ(number, items.size());
    items.push_back(item.dump());
  }));
  return items;
}

TEST(JsonRoot, ReadsTheItemsOfLongMembers) {
  EXPECT_EQ(tensors_of(R"({"tensors": []})"), std::vector<std::string>());
  EXPECT_EQ(tensors_of(R"({"a": 1, "tensors": [1, "[,", {"b": [2]}, "\""] , "c": 2})"),
            (std::vector<std::string>{"1", R"("[,")", R"({"b": [2]})", R"("\"")"}));
}

TEST(JsonRoot, ReadsManyItemsInSteps) {
  std::string text = R"({"files": [], "tensors": [0)";
  std::size_t const count = 200'000;
  for (std::size_t i = 1; i < count; ++i) text += fmt::format(", {}", i);
  text += "]}";
  EXPECT_EQ(tensors_of(text).size(), count);
  EXPECT_EQ(tensors_of(text).back(), fmt::format("{}", count - 1));
}

TEST(JsonRoot, KeepsOtherMembers) {
  std::string const text =
      R"({"tensors": [1], "version": 1, "files": {"a": 1}, "job": {"b": [3]}})";
  JsonRoot const root(text, "x.json", long_members, '[');
  EXPECT_EQ(root.members(),
            parse_json(R"({"tensors": null, "version": 1, "files": {"a": 1}, "job": {"b": [3]}})",
                       "expected"));
  EXPECT_FALSE(root.items("files", [](std::size_t, Json const&) { FAIL(); }));
  EXPECT_FALSE(root.items("missing", [](std::size_t, Json const&) { FAIL(); }));
}

TEST(JsonRoot, ReadsTheMembersOfAnObject) {
  constexpr std::array<std::string_view, 1> map = {"weight_map"};
  std::string const text = R"({"weight_map": {"a.b": "x", "c": {"d": 1}}, "metadata": {}})";
  JsonRoot const root(text, "x.json", map, '{');
  std::vector<std::pair<std::string, std::string>> entries;
  EXPECT_TRUE(root.entries("weight_map", [&](std::string const& key, Json const& value) {
    entries.emplace_back(key, value.dump());
  }));
  EXPECT_EQ(entries, (std::vector<std::pair<std::string, std::string>>{{"a.b", R"("x")"},
                                                                       {"c", R"({"d": 1})"}}));
}

/// As parse_json() does.
TEST(JsonRoot, RefusesWhatIsNoJson) {
  for (std::string const list : {"[1,]", "[,1]", "[1 2]", "[1}", "[{]", "[{1],[2}]", "[\"a]",
                                 "[1]]", "[[1]", "[nul]", "[\"\xff\"]", R"([{"a": 1, "a": 2}])"}) {
    std::string const text = R"({"tensors": )" + list + "}";
    ASSERT_THROW((void)parse_json(text, "x.json"), Error) << text;
    EXPECT_THROW((void)tensors_of(text), Error) << text;
  }
  for (std::string const text :
       {"", "{", R"({"tensors": [1], "tensors": [2]})", R"({"tensors": [1]} x)",
        R"({"tensors": [1],})", R"({"tensors" [1]})", R"({tensors: [1]})"})
    EXPECT_THROW((void)JsonRoot(text, "x.json", long_members, '[').members(), Error) << text;
}

/// A comma at the end, wherever a step ends.
TEST(JsonRoot, RefusesACommaAtTheEndOfAnyStep) {
  std::string const item = "\"" + std::string(1000, 'a') + "\",";
  for (std::size_t const count : {1U, 261U, 262U, 263U, 264U, 525U}) {
    std::string list;
    for (std::size_t i = 0; i < count; ++i) list += item;
    EXPECT_THROW((void)tensors_of(R"({"tensors": [)" + list + "]}"), Error) << count;
    list.pop_back();
    EXPECT_EQ(tensors_of(R"({"tensors": [)" + list + "]}").size(), count);
  }
}

}  // namespace
}  // namespace reshard
