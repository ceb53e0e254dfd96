// The second arithmetic, against the first one and against itself backwards.
#include "core/layout/pieces/element_place.hpp"

#include <random>

#include <gtest/gtest.h>

#include "tests/core/layout/random_layout.hpp"

namespace reshard::test {
namespace {

std::vector<Index> unravelled(Index flat, std::vector<Index> const& shape) {
  std::vector<Index> index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; flat /= shape[d]) index[d] = flat % shape[d];
  return index;
}

/// What the first arithmetic says of every element of a stored tensor: the name, and the index
/// along each axis; "" for padding.
std::vector<std::string> by_pieces(Model const& model, Layout const& layout, Index volume) {
  std::vector<std::string> result(static_cast<std::size_t>(volume));
  for (Piece const& piece : layout.pieces) {
    std::vector<PieceCopy> copies = piece.copies;
    Index elements = 1;
    for (PieceDigit const& digit : piece.digits) elements *= digit.count;
    Index repeats = 1;
    for (PieceCopy const& copy : copies) repeats *= copy.count;
    for (Index e = 0; e < elements * repeats; ++e) {
      Index rest = e / repeats;
      Index again = e % repeats;
      Index offset = piece.offset;
      std::vector<Index> at(model.axes.size(), -1);
      for (PieceDigit const& digit : piece.digits) {
        Index const value = rest % digit.count;
        rest /= digit.count;
        offset += value * digit.stride;
        at[digit.axis] = std::max<Index>(at[digit.axis], 0) + (digit.first + value) * digit.div;
      }
      for (PieceCopy const& copy : copies) {
        offset += again % copy.count * copy.stride;
        again /= copy.count;
      }
      result[static_cast<std::size_t>(offset)] =
          fmt::format("{} [{}]", model.tensors[index(piece.tensor)], fmt::join(at, ","));
    }
  }
  return result;
}

ElementRule rule_of(LayoutExpr const& expr, Model const& model, Shares const& shares) {
  ElementRule rule;
  auto const no_size = [](std::string_view) { return std::optional<Index>(); };
  rule.trees = {std::make_shared<ElementTree const>(element_tree(expr, model.axes, no_size))};
  for (AxisId axis = 0; axis < model.axes.size(); ++axis)
    if (Share const* const share = shares.find(axis)) rule.held.push_back({axis, *share});
  return rule;
}

std::string text_of(std::optional<LogicalElement> const& element) {
  return element ? fmt::format("{} [{}]", element->tensor, fmt::join(element->at, ",")) : "";
}

/// Whether two elements are the same as far as both say it. Alternatives of a random expression may
/// have one name and other axes, which no model has.
bool agree(LogicalElement const& a, LogicalElement const& b) {
  bool same = a.tensor == b.tensor;
  for (std::size_t axis = 0; axis < a.at.size(); ++axis)
    same = same && (a.at[axis] < 0 || b.at[axis] < 0 || a.at[axis] == b.at[axis]);
  return same;
}

TEST(ElementPlace, SaysOfEveryElementWhatPiecesSay) {
  int checked = 0;
  for (std::uint32_t seed = 70'000; seed < 72'000; ++seed) {
    std::mt19937 random(seed);
    RandomLayout made = random_layout(random);
    LayoutExpr const expr = parse_layout(made.text);
    Layout const layout = evaluate(expr, made.model.scope(), made.shares);
    Index volume = 1;
    for (Index const extent : layout.shape) volume *= extent;
    if (volume > 160) continue;
    ElementRule const rule = rule_of(expr, made.model, made.shares);
    ASSERT_EQ(element_shape(rule, made.model.axes), layout.shape) << seed << ": " << made.text;
    std::vector<std::string> const expected = by_pieces(made.model, layout, volume);
    for (Index flat = 0; flat < volume; ++flat) {
      auto const element = element_at(rule, made.model.axes, unravelled(flat, layout.shape));
      ASSERT_EQ(text_of(element), expected[static_cast<std::size_t>(flat)])
          << seed << ": " << made.text << " at " << flat;
      if (!element) continue;
      auto const back = place_of(rule, made.model.axes, *element);
      ASSERT_TRUE(back) << seed << ": " << made.text << " at " << flat;
      auto const again = element_at(rule, made.model.axes, *back);
      ASSERT_TRUE(again && agree(*again, *element)) << seed << ": " << made.text << " at " << flat;
      ++checked;
    }
  }
  EXPECT_GT(checked, 5000);
}

/// attn: (group (q: head dim | k: dim | v: dim)) hidden; 4 groups of 3 heads over 2 ranks.
struct Attention {
  Model model{{"group", 4}, {"head", 3}, {"dim", 2}, {"hidden", 5}, {"layer", 6}};
  LayoutExpr expr = parse_layout("attn: (group (q: head dim | k: dim | v: dim)) hidden");
  ElementRule second_rank() {
    ElementRule rule = rule_of(expr, model, shares(model, {{"group", {{2, 4, false}}}}));
    rule.named = {{model.axis("layer"), 0, 1, 3}};
    return rule;
  }
  LogicalElement element(std::string name, Index layer, Index group, Index head, Index dim,
                         Index hidden) const {
    LogicalElement result{std::move(name), std::vector<Index>(model.axes.size(), -1)};
    result.at[model.axis("layer")] = layer;
    result.at[model.axis("group")] = group;
    result.at[model.axis("head")] = head;
    result.at[model.axis("dim")] = dim;
    result.at[model.axis("hidden")] = hidden;
    return result;
  }
};

TEST(ElementPlace, AShareHoldsItsOwnElementsAlone) {
  Attention a;
  ElementRule const rule = a.second_rank();
  EXPECT_EQ(element_shape(rule, a.model.axes), (std::vector<Index>{20, 5}));
  // group 3 is the second of the share: rows 10 to 19; head 1, dim 1 is row 3 of them.
  EXPECT_EQ(place_of(rule, a.model.axes, a.element("attn.q", 3, 3, 1, 1, 4)),
            (std::vector<Index>{13, 4}));
  EXPECT_EQ(place_of(rule, a.model.axes, a.element("attn.v", 3, 2, 0, 1, 0)),
            (std::vector<Index>{9, 0}));
  EXPECT_FALSE(
      place_of(rule, a.model.axes, a.element("attn.q", 3, 1, 1, 1, 4)));  // the first rank's
  EXPECT_FALSE(place_of(rule, a.model.axes, a.element("attn.q", 2, 3, 1, 1, 4)));  // another layer
  EXPECT_FALSE(place_of(rule, a.model.axes, a.element("attn.qk", 3, 3, 1, 1, 4)));
}

TEST(ElementPlace, RowsAreCutWhereRanksAreMoreThanGroups) {
  Attention a;
  ElementRule rule = a.second_rank();
  rule.held.clear();
  rule.rows = ElementRule::Rows{0, 25, 5};  // the sixth of eight ranks
  EXPECT_EQ(element_shape(rule, a.model.axes), (std::vector<Index>{5, 5}));
  // Row 25 is group 2, row 5 of it: head 2, dim 1.
  EXPECT_EQ(text_of(element_at(rule, a.model.axes, std::vector<Index>{0, 1})),
            text_of(a.element("attn.q", 3, 2, 2, 1, 1)));
  EXPECT_EQ(place_of(rule, a.model.axes, a.element("attn.q", 3, 2, 2, 1, 1)),
            (std::vector<Index>{0, 1}));
  EXPECT_FALSE(place_of(rule, a.model.axes, a.element("attn.q", 3, 2, 0, 0, 1)));
}

TEST(ElementPlace, AxesInFrontAreDimensions) {
  Attention a;
  ElementRule rule = a.second_rank();
  rule.named.clear();
  rule.front = {{a.model.axis("layer"), {1, 3, 4}}};
  EXPECT_EQ(element_shape(rule, a.model.axes), (std::vector<Index>{3, 20, 5}));
  EXPECT_EQ(place_of(rule, a.model.axes, a.element("attn.q", 4, 3, 1, 1, 4)),
            (std::vector<Index>{2, 13, 4}));
  EXPECT_EQ(text_of(element_at(rule, a.model.axes, std::vector<Index>{1, 13, 4})),
            text_of(a.element("attn.q", 3, 3, 1, 1, 4)));
  EXPECT_FALSE(place_of(rule, a.model.axes, a.element("attn.q", 2, 3, 1, 1, 4)));
}

TEST(ElementPlace, PaddingIsNoElement) {
  Model model{{"vocab", 10}, {"hidden", 2}};
  ElementRule const rule = rule_of(parse_layout("embed: vocab hidden"), model,
                                   shares(model, {{"vocab", {{8, 10, false}, {0, 6, true}}}}));
  EXPECT_EQ(element_shape(rule, model.axes), (std::vector<Index>{8, 2}));
  EXPECT_EQ(text_of(element_at(rule, model.axes, std::vector<Index>{1, 1})), "embed [9,1]");
  EXPECT_FALSE(element_at(rule, model.axes, std::vector<Index>{2, 0}));
}

TEST(ElementPlace, AnUnknownAxisIsRefused) {
  Model model{{"a", 2}};
  LayoutExpr const expr = parse_layout("x: a b");
  auto const no_size = [](std::string_view) { return std::optional<Index>(); };
  EXPECT_NE(sentence_of([&] { element_tree(expr, model.axes, no_size); }).find("no axis 'b'"),
            std::string::npos);
}

TEST(ElementPlace, AnUnknownSizeIsRefused) {
  Model model{{"a", 2}};
  LayoutExpr const expr = parse_layout("x: a%glu");
  auto const no_size = [](std::string_view) { return std::optional<Index>(); };
  EXPECT_EQ(sentence_of([&] { element_tree(expr, model.axes, no_size); }),
            "'x: a%glu': the size 'glu' is not known. Correct the map.");
}

}  // namespace
}  // namespace reshard::test
