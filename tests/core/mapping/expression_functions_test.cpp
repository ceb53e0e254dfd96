// Functions of lists and texts in expressions of a map.
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/mapping/expressions/expression.hpp"

namespace reshard {
namespace {

ExpressionScope scope() {
  ExpressionScope result;
  result.key = [](std::string_view key) -> std::optional<Json> {
    static Json const facts = parse_json(
        R"({"list": ["a", "b", "a"], "numbers": [1, 0, 1], "text": "M-M*-", "empty": [], "nothing": "", "none": null})",
        "facts");
    Json const* found = facts.find(key);
    return found == nullptr ? std::nullopt : std::optional<Json>(*found);
  };
  return result;
}

Json value(std::string_view text) { return Expression::parse(text, "map:1").evaluate(scope()); }
Json json(std::string_view text) { return parse_json(text, "expected"); }

std::string refusal(std::string_view text) {
  try {
    value(text);
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.sentence();
  }
  return "";
}

void expect_refused(std::string_view text, std::string const& says) {
  EXPECT_NE(refusal(text).find(says), std::string::npos) << text << ": " << refusal(text);
  EXPECT_NE(refusal(text).find("map:1"), std::string::npos) << refusal(text);
}

TEST(Split, GivesWhatStandsBetweenTheSeparators) {
  EXPECT_EQ(value("split('a/b/c', '/')"), json(R"(["a", "b", "c"])"));
  EXPECT_EQ(value("split('a', '/')"), json(R"(["a"])"));
  EXPECT_EQ(value("split('/a//', '/')"), json(R"(["", "a", "", ""])"));
  EXPECT_EQ(value("split(nothing, '/')"), json(R"([""])"));
  EXPECT_EQ(value("split('a, b, c', ', ')"), json(R"(["a", "b", "c"])"));
  EXPECT_EQ(value("split('aaa', 'aa')"), json(R"(["", "a"])"));
  EXPECT_EQ(value("len(split(text, '-'))"), Json(3));
}

TEST(Split, OfNothingIsNothing) {
  EXPECT_TRUE(value("split(none, '/')").is_null());
  EXPECT_TRUE(value("split(null, '/')").is_null());
}

TEST(Split, NeedsATextAndASeparator) {
  expect_refused("split(list, '/')", "split needs a string, found [");
  expect_refused("split(3, '/')", "split needs a string, found 3");
  expect_refused("split('a', '')", "there is no function split with 2 arguments");
  expect_refused("split('a', 1)", "there is no function split with 2 arguments");
  expect_refused("split('a')", "there is no function split with 1 arguments");
}

TEST(Join, PutsTheTextBetweenTheItems) {
  EXPECT_EQ(value("join(list, '-')"), Json("a-b-a"));
  EXPECT_EQ(value("join(list, '')"), Json("aba"));
  EXPECT_EQ(value("join(empty, '-')"), Json(""));
  EXPECT_EQ(value("join(list('x'), '-')"), Json("x"));
  EXPECT_EQ(value("join(split('a/b', '/'), '+')"), Json("a+b"));
  EXPECT_EQ(value("join(list('', ''), '-')"), Json("-"));
  EXPECT_TRUE(value("join(none, '-')").is_null());
}

TEST(Join, NeedsTexts) {
  expect_refused("join(text, '-')", "join needs a list, found \"M-M*-\"");
  expect_refused("join(numbers, '-')", "join needs strings, found 1");
  expect_refused("join(list, 0)", "there is no function join with 2 arguments");
}

TEST(Translate, ReplacesItemsByPlace) {
  EXPECT_EQ(value("translate(list, list('a', 'b'), list(1, 2))"), json("[1, 2, 1]"));
  EXPECT_EQ(value("translate(numbers, list(0, 1), list('dense', 'moe'))"),
            json(R"(["moe", "dense", "moe"])"));
  EXPECT_EQ(value("join(translate(numbers, list(1, 0), list('E', '-')), '')"), Json("E-E"));
  EXPECT_EQ(value("translate(empty, list(), list())"), json("[]"));
  EXPECT_EQ(value("translate(list, list('a', 'b', 'a'), list(1, 2, 3))"),
            json("[1, 2, 1]"));  // the first place
  EXPECT_TRUE(value("translate(none, list(), list())").is_null());
}

TEST(Translate, NeedsAPlaceForEveryItem) {
  expect_refused("translate(list, list('a'), list(1))", "\"b\" is not one of [\"a\"]");
  expect_refused("translate(list, list('a', 'b'), list(1))",
                 "translate needs a list and two lists of equal length");
  expect_refused("translate(text, list('M'), list(1))",
                 "translate needs a list and two lists of equal length");
  expect_refused("translate(list, 'ab', list(1, 2))",
                 "there is no function translate with 3 arguments");
}

}  // namespace
}  // namespace reshard
