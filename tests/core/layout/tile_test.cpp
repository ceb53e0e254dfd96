#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

Piece interval(AxisId axis, Index size, Index begin, Index end) {
  return {{}, {{axis, size, 1, begin, end - begin, 1}}, {}, 0};
}

DomainAxis whole(Model const& model, char const* name) {
  return {model.axis(name), 1, {{0, model.axes[model.axis(name)].size}}};
}

std::string fault_of(Model const& model, std::vector<Piece> const& pieces,
                     std::vector<DomainAxis> const& domain) {
  std::optional<TilingFault> const fault = tile(pieces, domain, model.axes);
  return fault ? fmt::format("{} hold {}", fault->holders, fault->where) : "";
}

TEST(Tile, ProvesCoversAndNamesGapsAndOverlaps) {
  Model const model{{"inter", 8}};
  auto const found = [&](Index end, Index begin) {
    return fault_of(model, {interval(0, 8, 0, end), interval(0, 8, begin, 8)},
                    {whole(model, "inter")});
  };
  EXPECT_EQ(found(4, 4), "");
  EXPECT_EQ(found(4, 5), "0 hold inter 4:5");
  EXPECT_EQ(found(5, 4), "2 hold inter 4:5");
}

TEST(Tile, NamesTwoOfTheHolders) {
  Model const model{{"inter", 8}};
  std::vector<Piece> const pieces{interval(0, 8, 0, 4), interval(0, 8, 4, 8), interval(0, 8, 6, 8),
                                  interval(0, 8, 6, 7)};
  DomainAxis const domain[] = {whole(model, "inter")};
  auto const fault = tile(pieces, domain, model.axes);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->where, "inter 6:7");
  EXPECT_EQ(fault->holders, 3);
  EXPECT_EQ(fault->a, 1U);
  EXPECT_EQ(fault->b, 2U);
}

/// One piece per layer and expert, as formats with one tensor per expert have them; those for which
/// `missing` holds are left out.
template <class Missing>
std::vector<Piece> experts_by_name(Model const& model, Missing&& missing) {
  std::vector<Piece> pieces;
  for (Index layer = 3; layer < 48; ++layer)
    for (Index expert = 0; expert < 128; ++expert)
      if (!missing(layer, expert))
        pieces.push_back(
            {{}, {{2, 4, 1, 0, 4, 1}, {0, 48, 1, layer, 1, 0}, {1, 128, 1, expert, 1, 0}}, {}, 0});
  EXPECT_EQ(model.axes.size(), 3U);
  return pieces;
}

TEST(Tile, AFaultIsAsLargeAsItContinues) {
  Model const model{{"layer", 48}, {"expert", 128}, {"hidden", 4}};
  std::vector<DomainAxis> const domain{
      {0, 1, {{3, 48}}}, whole(model, "expert"), whole(model, "hidden")};
  EXPECT_EQ(fault_of(model, experts_by_name(model, [](Index, Index) { return false; }), domain),
            "");
  EXPECT_EQ(
      fault_of(model, experts_by_name(model, [](Index, Index expert) { return expert >= 64; }),
               domain),
      "0 hold layer 3:48, expert 64:128");
  EXPECT_EQ(fault_of(model, experts_by_name(model, [](Index layer, Index) { return layer == 7; }),
                     domain),
            "0 hold layer 7:8");
  EXPECT_EQ(fault_of(model, {}, domain), "0 hold layer 0:48");
}

TEST(Tile, APieceOutsideOfTheDomainIsHeldByOne) {
  Model const model{{"layer", 8}, {"hidden", 2}};
  Piece const all{{}, {{0, 8, 1, 0, 8, 2}, {1, 2, 1, 0, 2, 1}}, {}, 0};
  EXPECT_EQ(fault_of(model, {all}, {{0, 1, {{2, 8}}}, whole(model, "hidden")}), "1 hold layer 0:2");
  EXPECT_EQ(fault_of(model, {all}, {{0, 1, {}}, whole(model, "hidden")}), "1 hold layer 0:8");
}

TEST(Tile, DomainsOfSeveralRuns) {
  Model const model{{"layer", 8}, {"hidden", 2}};
  std::vector<DomainAxis> const domain{{0, 1, {{1, 2}, {4, 6}}}, whole(model, "hidden")};
  Piece const stacked{{}, {{1, 2, 1, 0, 2, 1}, {0, 8, 1, 4, 2, 2}}, {}, 0};
  Piece const named{{}, {{1, 2, 1, 0, 2, 1}, {0, 8, 1, 1, 1, 0}}, {}, 0};
  EXPECT_EQ(fault_of(model, {stacked, named}, domain), "");
  EXPECT_EQ(fault_of(model, {named}, domain), "0 hold layer 4:6");
}

TEST(Tile, DigitsTogetherMakeAnAxis) {
  Model model{{"inter", 96}};
  DomainAxis const domain = whole(model, "inter");
  std::vector<Piece> const blocks = model.pieces("x: inter/32 inter%32", "x");
  EXPECT_EQ(fault_of(model, blocks, {domain}), "");
  std::vector<Piece> some = blocks;
  some[0].digits.change(0, [](PieceDigit& digit) { digit.count = 2; });
  EXPECT_EQ(fault_of(model, some, {domain}), "0 hold inter 64:96");
  some = blocks;
  some[0].digits.change(1, [](PieceDigit& digit) { digit.count = 30; });
  EXPECT_EQ(fault_of(model, some, {domain}), "0 hold inter/32 0:3, inter%32 30:32");
  some[0].digits.change(0, [](PieceDigit& digit) { digit.count = 1; });
  some.push_back(interval(0, 96, 32, 96));
  EXPECT_EQ(fault_of(model, some, {domain}), "0 hold inter 30:32");
  EXPECT_NE(sentence_of([&] {
              fault_of(model, model.pieces("x: inter/32", "x"), {domain});
            }).find("leaves out (index mod 32) div 1"),
            std::string::npos);
}

TEST(Tile, RaggedTopDigit) {
  Model model{{"hidden", 70}};
  std::vector<Piece> pieces{{{}, {{0, 96, 32, 0, 2, 32}, {0, 32, 1, 0, 32, 1}}, {}, 0},
                            interval(0, 70, 64, 70)};
  EXPECT_EQ(fault_of(model, pieces, {whole(model, "hidden")}), "");
  pieces[1] = interval(0, 70, 64, 69);
  EXPECT_EQ(fault_of(model, pieces, {whole(model, "hidden")}), "0 hold hidden 69:70");
}

TEST(Tile, AxesCountedInBlocks) {
  Model model{{"hidden", 70}};
  DomainAxis const blocks{0, 32, {{0, 3}}};
  EXPECT_EQ(fault_of(model, model.pieces("s: hidden/32", "s"), {blocks}), "");
  EXPECT_EQ(
      fault_of(model, model.pieces("s: hidden/32", "s", shares(model, {{"hidden", {{0, 64}}}})),
               {blocks}),
      "0 hold hidden/32 2:3");
  EXPECT_NE(sentence_of([&] { fault_of(model, model.pieces("s: hidden", "s"), {blocks}); }), "")
      << "the tensor has no finer digit";
  Model small{{"hidden", 20}};
  EXPECT_EQ(fault_of(small, small.pieces("s: hidden/32", "s"), {{0, 32, {{0, 1}}}}), "");
}

TEST(Tile, ScalarsAndEmptyTensors) {
  Model model{{"a", 0}, {"one", 1}};
  std::vector<Piece> const scalar = model.pieces("x:", "x");
  EXPECT_EQ(fault_of(model, scalar, {}), "");
  EXPECT_EQ(fault_of(model, {}, {}), "0 hold its only element");
  EXPECT_EQ(fault_of(model, {scalar[0], scalar[0]}, {}), "2 hold its only element");
  EXPECT_EQ(fault_of(model, {scalar[0], scalar[0]}, {whole(model, "one")}),
            "2 hold its only element");
  EXPECT_EQ(fault_of(model, model.pieces("x: a", "x"), {whole(model, "a")}), "");
  EXPECT_EQ(fault_of(model, {}, {{0, 1, {}}}), "");
}

}  // namespace
}  // namespace reshard::test
