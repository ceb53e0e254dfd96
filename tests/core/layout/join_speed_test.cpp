// Prints how long the largest real case takes; asserts counts, never time.
#include <chrono>
#include <cstdio>
#include <random>

#include <gtest/gtest.h>

#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

constexpr Index layers = 61;
constexpr Index experts = 256;
constexpr Index rows = 2048;
constexpr Index columns = 7168;

/// One tensor of [rows / parts, columns] for every layer, expert and part, as the mapping layer
/// builds them, in the order of the files.
std::vector<Piece> expert_pieces(Index layer_count, Index parts) {
  std::vector<Piece> pieces;
  Index const part = rows / parts;
  for (Index layer = 0; layer < layer_count; ++layer)
    for (Index expert = 0; expert < experts; ++expert)
      for (Index at = 0; at < parts; ++at)
        pieces.push_back({{},
                          {{2, rows, 1, at * part, part, columns},
                           {3, columns, 1, 0, columns, 1},
                           {0, layers, 1, layer, 1, 0},
                           {1, experts, 1, expert, 1, 0}},
                          {},
                          0});
  return pieces;
}

template <class Work>
void timed(char const* what, Work&& work) {
  auto const begin = std::chrono::steady_clock::now();
  work();
  std::printf(
      "%s: %.1f ms\n", what,
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
}

TEST(JoinSpeed, AllExpertsOfALargeModel) {
  Model const model{
      {"layer", layers}, {"expert", experts}, {"moe_inter", rows}, {"hidden", columns}};
  std::vector<Piece> src = expert_pieces(layers, 8);
  std::vector<Piece> const dst = expert_pieces(layers, 4);
  AxisId const order[] = {0, 1, 2, 3};
  timed("join, pieces in order",
        [&] { EXPECT_EQ(join(src, dst, order, model.axes).overlaps.size(), src.size()); });
  DomainAxis const domain[] = {
      {0, 1, {{0, layers}}}, {1, 1, {{0, experts}}}, {2, 1, {{0, rows}}}, {3, 1, {{0, columns}}}};
  timed("tile, pieces in order", [&] { EXPECT_FALSE(tile(src, domain, model.axes)); });
  std::ranges::shuffle(src, std::mt19937(3));
  timed("join, pieces shuffled",
        [&] { EXPECT_EQ(join(src, dst, order, model.axes).overlaps.size(), src.size()); });
  timed("tile, pieces shuffled", [&] { EXPECT_FALSE(tile(src, domain, model.axes)); });
}

TEST(EvaluateSpeed, FusedAttention) {
  Model model{{"group", 8}, {"head", 8}, {"dim", 128}, {"hidden", 8192}};
  LayoutExpr const expr = parse_layout("attn: (group (q: head dim | k: dim | v: dim)) hidden");
  LayoutScope const scope = model.scope();
  Shares const held = shares(model, {{"group", {{2, 4}}}});
  std::size_t pieces = 0;
  timed("evaluate, 10000 fused attention tensors", [&] {
    for (int i = 0; i < 10000; ++i) pieces += evaluate(expr, scope, held).pieces.size();
  });
  EXPECT_EQ(pieces, 30000U);
}

}  // namespace
}  // namespace reshard::test
