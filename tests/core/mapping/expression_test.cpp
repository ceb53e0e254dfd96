#include "core/mapping/expressions/expression.hpp"

#include <gtest/gtest.h>

namespace reshard {
namespace {

ExpressionScope scope_of(Json facts, bool absent_spreads = false, bool exact = false) {
  ExpressionScope scope;
  scope.key = [facts = std::move(facts)](std::string_view key) -> std::optional<Json> {
    Json const* found = facts.find(key);
    return found == nullptr ? std::nullopt : std::optional<Json>(*found);
  };
  scope.absent_spreads = absent_spreads;
  scope.exact_division = exact;
  return scope;
}

Json facts() {
  return parse_json(
      R"({"heads": 32, "groups": 8, "none": null, "freq": [0, 1, 1], "every": 2, "pattern": "M*E-", "tied": true, "theta": 1e6})",
      "facts");
}

struct Case {
  char const* text;
  Json value;
};

TEST(Expression, GivesTheValueOfEveryOperator) {
  for (auto const& [text, value] : std::vector<Case>{
           {"1 + 2 * 3", 7},
           {"(1 + 2) * 3", 9},
           {"heads / groups", 4},
           {"7 / 2", 3},
           {"-7 / 2", -4},
           {"7 % 4", 3},
           {"none ?? 5", 5},
           {"missing ?? heads", 32},
           {"missing ?? none ?? 3", 3},
           {"heads == 32 and groups < 9", 1},
           {"heads != 32 or not tied", 0},
           {"pattern[1] == '*'", 1},
           {"contains(pattern, 'E')", 1},
           {"count('a,a', 'a')", 2},
           {"'t' * 3 + 'm'", "tttm"},
           {"len(pattern) + len(none)", 4},
           {"freq(freq, 1)", 1},
           {"freq(every, 3)", 0},
           {"if(tied, 'yes', missing)", "yes"},
           {"min(3, 1, 2) + max(3, 1, 2)", 4},
           {"ceil_div(50257, 128)", 393},
           {"inverse_sqrt(16)", 0.25},
           {"inverse_sqrt(none)", Json()},
           {"indices(freq)", parse_json("[1, 2]", "t")},
           {"list(1, 'a')", parse_json("[1, \"a\"]", "t")},
           {"tied", true},
           {"theta", 1e6},
       })
    EXPECT_EQ(Expression::parse(text, "map:1").evaluate(scope_of(facts())), value) << text;
}

TEST(Expression, AbsentValuesSpreadWhereAModelMayLackAnAxis) {
  auto const scope = scope_of(facts(), true);
  EXPECT_TRUE(Expression::parse("none + 4", "map:1").evaluate(scope).is_null());
  EXPECT_TRUE(Expression::parse("none[2]", "map:1").evaluate(scope).is_null());
  EXPECT_FALSE(Expression::parse("none > 1", "map:1").holds(scope));
}

TEST(Expression, SizesMustDivideExactly) {
  EXPECT_THROW(Expression::parse("heads / 5", "map:1").evaluate(scope_of(facts(), false, true)),
               Error);
}

struct BadCase {
  char const* text;
  char const* fragment;
};

TEST(Expression, MistakesNameThePlaceAndTheColumn) {
  for (auto const& [text, fragment] : std::vector<BadCase>{
           {"", "column 1"},
           {"1 +", "column 4"},
           {"(1", "')'"},
           {"'open", "a closing quote for the string"},
           {"1 2", "an operator or the end expected at column 3"},
           {"f(1,", "a value"},
           {"key[1", "']'"},
           {"1234567890123456789012", "a number of at most 18 digits"},
       }) {
    try {
      Expression::parse(text, "qwen.toml:7");
      FAIL() << text;
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(error.sentence().find("qwen.toml:7"), std::string::npos) << error.sentence();
      EXPECT_NE(error.sentence().find(fragment), std::string::npos) << error.sentence();
    }
  }
}

TEST(Expression, WrongValuesAreSaidWithTheirValue) {
  for (auto const& [text, fragment] : std::vector<BadCase>{
           {"unknown + 1", "'unknown'"},
           {"1 / 0", "above zero"},
           {"pattern + 1", "integer"},
           {"pattern[9]", "4 characters"},
           {"nothing(1)", "no function nothing"},
           {"9223372036854775 * 100000", "64 bits"},
           {"'x' * 9999999", "a string is repeated 9999999 times; 0 to 1000000 is allowed"},
           {"freq[3]", "freq[3]: the list has 3 items"},
           {"freq[-1]", "freq[-1]: the list has 3 items"},
           {"heads[1]", "heads is neither a list nor a string, it is 32"},
           {"len(heads)", "len of 32; a list or a string is needed"},
           {"count(heads, 3)", "32 is neither a list nor a string"},
           {"freq(freq, 3)", "layer 3 of a list of 3 layers"},
           {"freq(0, 3)", "a layer frequency of 0; it must be above zero"},
           {"inverse_sqrt(0)", "inverse_sqrt of 0; it must be above zero"},
           {"ceil_div(heads, 0)", "ceil_div by 0; the divisor must be above zero"},
       }) {
    try {
      Expression::parse(text, "m:1").evaluate(scope_of(facts()));
      FAIL() << text;
    } catch (Error const& error) {
      EXPECT_NE(error.sentence().find(fragment), std::string::npos) << error.sentence();
    }
  }
}

TEST(Expression, TheLargestNumbersAreComputedOrRefused) {
  Json const limits = Json(Json::Object{{"least", Json(INT64_MIN)}, {"most", Json(INT64_MAX)}});
  for (auto const& [text, value] : std::vector<Case>{{"(most - 1) % most", Json(INT64_MAX - 1)},
                                                     {"least % 3", 1},
                                                     {"least / 2", Json(INT64_MIN / 2)},
                                                     {"least / 3", Json(INT64_MIN / 3 - 1)},
                                                     {"ceil_div(most, 2)", Json(INT64_MAX / 2 + 1)},
                                                     {"ceil_div(most, most)", 1},
                                                     {"-1 - least", Json(INT64_MAX)}})
    EXPECT_EQ(Expression::parse(text, "map:1").evaluate(scope_of(limits)), value) << text;
  for (char const* const text : {"-least", "0 - least", "most + 1", "least * 2",
                                 "join(list('x' * 1000000, 'x' * 1000000), '')"})
    EXPECT_THROW(Expression::parse(text, "map:1").evaluate(scope_of(limits)), Error) << text;
}

TEST(Expression, DeepNestingIsRefusedNotFollowed) {
  EXPECT_THROW(Expression::parse(std::string(100000, '(') + "1", "m:1"), Error);
  EXPECT_THROW(Expression::parse(std::string(100000, '-') + "1", "m:1"), Error);
  for (char const c : {'(', '-'}) {
    try {
      Expression::parse(std::string(65, c) + "1", "m:1");
      FAIL() << c;
    } catch (Error const& error) {
      EXPECT_EQ(error.sentence(),
                "m:1: an expression nested deeper than 64 levels. Split it with [let].");
    }
  }
}

}  // namespace
}  // namespace reshard
