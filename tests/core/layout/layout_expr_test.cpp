#include "core/layout/layout_expr.hpp"

#include <random>

#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

using Names = std::vector<std::string>;

std::string refusal(std::string const& text) {
  return sentence_of([&] { parse_layout(text); });
}

Names axes_of(std::string_view text, std::string_view tensor) {
  Names names;
  for (LayoutExpr::Digit const& digit : parse_layout(text).digits_of(tensor))
    names.push_back(digit.axis + (digit.mod.empty() ? "" : "%" + digit.mod) +
                    (digit.div.empty() ? "" : "/" + digit.div));
  return names;
}

TEST(ParseLayout, KeepsTagDimensionsAndColumns) {
  LayoutExpr const expr = parse_layout("attn: (group (q: head dim | k: dim)) hidden");
  EXPECT_EQ(expr.tag, "attn");
  ASSERT_EQ(expr.dims.size(), 2U);
  EXPECT_EQ(expr.dims[0].kind, LayoutExpr::Factor::Kind::alternatives);
  EXPECT_EQ(expr.dims[1].kind, LayoutExpr::Factor::Kind::digit);
  EXPECT_EQ(expr.dims[1].digit.axis, "hidden");
  EXPECT_EQ(expr.dims[1].digit.column, 38U);
}

TEST(ParseLayout, ReadsEveryFactor) {
  LayoutExpr const expr = parse_layout("x: 1 *a fill(3) b%8/2 c/glu ( | q: | r.s: d )");
  ASSERT_EQ(expr.dims.size(), 6U);
  EXPECT_EQ(expr.dims[0].kind, LayoutExpr::Factor::Kind::one);
  EXPECT_TRUE(expr.dims[1].digit.repeat);
  EXPECT_EQ(expr.dims[2].kind, LayoutExpr::Factor::Kind::fill);
  EXPECT_EQ(expr.dims[2].count, "3");
  EXPECT_EQ(expr.dims[3].digit.mod, "8");
  EXPECT_EQ(expr.dims[3].digit.div, "2");
  EXPECT_EQ(expr.dims[4].digit.div, "glu");
  ASSERT_EQ(expr.dims[5].alternatives.size(), 3U);
  EXPECT_EQ(expr.dims[5].alternatives[0].tag, "");
  EXPECT_EQ(expr.dims[5].alternatives[1].tag, "q");
  EXPECT_EQ(expr.dims[5].alternatives[2].tag, "r.s");
}

TEST(ParseLayout, WhiteSpaceOnlySeparates) {
  EXPECT_EQ(parse_layout("a:(b%2/2(q:|k:))c").tensors(),
            parse_layout(" a : ( b % 2 / 2 ( q : | k : ) ) c ").tensors());
}

TEST(ParseLayout, NothingIsAScalar) {
  EXPECT_TRUE(parse_layout("").dims.empty());
  EXPECT_EQ(parse_layout("x.y:").tensors(), Names{"x.y"});
}

TEST(ParseLayout, RefusesWithTextAndColumn) {
  struct Case {
    char const* text;
    char const* part;
  };
  for (Case const& c :
       {Case{"x: (a b", "column 8 has the end where ')' must follow"},
        Case{"x: a)", "')' at column 5"}, Case{"x: a | b", "'|' at column 6"},
        Case{"x: 2", "'2' at column 4"}, Case{"x: a y: b", "the tag at column 6 must come first"},
        Case{"x: a%", "is missing at column 6"}, Case{"x: a/ b c d/", "is missing at column 13"},
        Case{"x: *3", "the number at column 5"}, Case{"x: a-b", "column 5 has a character"},
        Case{"x: fill(", "is missing at column 9"}, Case{"x: fill(3", "column 10 has the end"},
        Case{"x.y z", "no ':' follows"}, Case{"x: a%2%3", "column 7 has a character"},
        Case{"x: *(a)", "an axis is missing at column 5"}}) {
    std::string const sentence = refusal(c.text);
    EXPECT_NE(sentence.find(c.part), std::string::npos) << c.text << " gave: " << sentence;
    EXPECT_NE(sentence.find(fmt::format("'{}'", c.text)), std::string::npos) << sentence;
  }
}

TEST(ParseLayout, BoundsDepthAndLength) {
  EXPECT_NE(
      refusal("x: " + std::string(65, '(') + "a" + std::string(65, ')')).find("deeper than 64"),
      std::string::npos);
  EXPECT_EQ(refusal("x: " + std::string(64, '(') + "a" + std::string(64, ')')), "");
  EXPECT_NE(refusal(std::string(4097, '(')).find("longer than"), std::string::npos);
}

TEST(ParseLayout, AnyTextIsReadOrRefused) {
  std::mt19937 random(11);
  std::string const letters = "ab1*%/()|:. fill";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::size_t n = random() % 24; n > 0; --n) text += letters[random() % letters.size()];
    try {
      LayoutExpr const expr = parse_layout(text);
      for (std::string const& tensor : expr.tensors()) expr.digits_of(tensor);
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
    }
  }
}

TEST(LayoutExprTensors, JoinsTagsFromOutsideInwards) {
  EXPECT_EQ(parse_layout("attn: (group (q: head dim | k: dim | v: dim)) hidden").tensors(),
            (Names{"attn.q", "attn.k", "attn.v"}));
  EXPECT_EQ(parse_layout("x: (a: (b: c | d: e) | f: g)").tensors(),
            (Names{"x.a.b", "x.a.d", "x.f"}));
  EXPECT_EQ(parse_layout("x: (p: a | q: a) (r: b | s: b)").tensors(),
            (Names{"x.p.r", "x.p.s", "x.q.r", "x.q.s"}));
}

TEST(LayoutExprTensors, ListsANameOnceAndNoFills) {
  EXPECT_EQ(parse_layout("x: (q: a | fill(4) | q: b)").tensors(), Names{"x.q"});
  EXPECT_EQ(parse_layout("hidden (expert (moe_inter | moe_inter))").tensors(), Names{""});
}

TEST(LayoutExprTensors, RefusesAnExplosionOfNames) {
  std::string text = "x:";
  for (int i = 0; i < 30; ++i) text += fmt::format(" (a{}: | b{}:)", i, i);
  EXPECT_NE(sentence_of([&] { parse_layout(text).tensors(); }).find("more than 4096"),
            std::string::npos);
}

TEST(LayoutExprDigits, AreThoseOnTheTensorsPath) {
  std::string const text = "attn: (group (q: head dim | sg: head *dim | k: dim/2 dim%2)) hidden";
  EXPECT_EQ(axes_of(text, "attn.q"), (Names{"group", "head", "dim", "hidden"}));
  EXPECT_EQ(axes_of(text, "attn.sg"), (Names{"group", "head", "hidden"}));
  EXPECT_EQ(axes_of(text, "attn.k"), (Names{"group", "dim/2", "dim%2", "hidden"}));
  EXPECT_TRUE(axes_of(text, "attn.v").empty());
}

TEST(LayoutExprDigits, ColumnsPointIntoTheText) {
  auto const digits = parse_layout("(group (q: head dm))").digits_of("q");
  ASSERT_EQ(digits.size(), 3U);
  EXPECT_EQ(digits[2].column, 17U);
}

}  // namespace
}  // namespace reshard::test
