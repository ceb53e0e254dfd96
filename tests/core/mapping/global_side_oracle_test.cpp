#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "core/mapping/sides/side.hpp"
#include "tests/core/mapping/slow_megatron.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard::test {
namespace {

using Indices = std::vector<Index>;

struct FormCase {
  char const* what;
  char const* moe_layer_freq;
  std::map<std::string, Json> options;
};

std::vector<FormCase> forms() {
  return {
      {"stacked", "1", {{"form", "dist"}, {"stacked", 1}}},
      {"stacked, local spec", "1", {{"form", "dist"}, {"stacked", 1}, {"spec", "local"}}},
      {"per layer", "[0, 1, 1]", {{"form", "dist"}}},
      {"one tensor per expert", "[0, 1, 1]", {{"form", "singleton"}, {"halves", 1}}},
      {"stacked, one tensor per expert", "1", {{"form", "singleton"}, {"stacked", 1}}},
      {"fsdp", "[0, 1, 1]", {{"form", "fsdp"}, {"halves", 1}}},
      {"fsdp, sequential experts", "1", {{"form", "fsdp_sequential"}, {"halves", 1}}},
  };
}

/// A model and its global side.
struct Opened {
  Opened(FormCase const& form, MapFile const& core, MeshSizes mesh)
      : model(core, core,
              {slow_args().set("moe_layer_freq", parse_json(form.moe_layer_freq, "freq")), "args",
               0}),
        side(model, core, {false, mesh, form.options, {}, {}, "test", true}) {
    apply_present(model, core);
    for (TensorId const tensor : side.optional_tensors()) model.set_exists(tensor, false);
    names = side.names(nullptr);
  }

  Model model;
  Side side;
  std::vector<StoredName> names;
};

/// Every element of a box, by its place in the box: what pieces say it is.
std::vector<std::vector<std::string>> explained(Model const& model,
                                                std::vector<Piece> const& pieces, Index volume) {
  std::vector<std::vector<std::string>> result(static_cast<std::size_t>(volume));
  for (Piece const& piece : pieces) {
    EXPECT_TRUE(piece.copies.empty());
    std::vector<Index> at(piece.digits.size(), 0);
    for (bool more = true; more;) {
      Index offset = piece.offset;
      std::vector<std::pair<std::string, Index>> indices;
      for (std::size_t i = 0; i < at.size(); ++i) {
        PieceDigit const& digit = piece.digits[i];
        EXPECT_EQ(digit.div, 1);
        EXPECT_EQ(digit.mod, model.axes()[digit.axis].size);
        offset += at[i] * digit.stride;
        if (digit.mod > 1) indices.emplace_back(model.axes()[digit.axis].name, digit.first + at[i]);
      }
      result.at(static_cast<std::size_t>(offset))
          .push_back(element_text(model.tensor(piece.tensor).name, indices));
      more = false;
      for (std::size_t i = at.size(); i-- > 0 && !more;) {
        more = ++at[i] < piece.digits[i].count;
        if (!more) at[i] = 0;
      }
    }
  }
  return result;
}

Index volume_of(Indices const& begin, Indices const& end) {
  Index volume = 1;
  for (std::size_t d = 0; d < begin.size(); ++d) volume *= end[d] - begin[d];
  return volume;
}

/// Whether every element of the box is explained once and as the slow version says; padding not at
/// all.
void expect_explained(Opened const& opened, StoredName const& name, Indices const& begin,
                      Indices const& end) {
  auto const found =
      explained(opened.model, opened.side.box_pieces(name, begin, end), volume_of(begin, end));
  for (std::size_t i = 0; i < found.size(); ++i) {
    Indices at(begin.size());
    auto rest = static_cast<Index>(i);
    for (std::size_t d = at.size(); d-- > 0;) {
      at[d] = begin[d] + rest % (end[d] - begin[d]);
      rest /= end[d] - begin[d];
    }
    std::string const expected = slow_element(name.name, at);
    ASSERT_EQ(found[i],
              expected.empty() ? std::vector<std::string>{} : std::vector<std::string>{expected})
        << name.name << " " << i;
  }
}

/// A grid of boxes that tiles a shape: each dimension cut at random.
std::vector<std::pair<Indices, Indices>> random_grid(Indices const& shape, std::mt19937& random) {
  std::vector<std::pair<Indices, Indices>> boxes{{{}, {}}};
  for (Index const extent : shape) {
    std::set<Index> cuts{0, extent};
    for (int i = 0; i < 2; ++i)
      cuts.insert(std::uniform_int_distribution<Index>(0, extent)(random));
    std::vector<std::pair<Indices, Indices>> next;
    for (auto const& [begin, end] : boxes)
      for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
        next.emplace_back(begin, end);
        next.back().first.push_back(*cut);
        next.back().second.push_back(*std::next(cut));
      }
    boxes = std::move(next);
  }
  return boxes;
}

TEST(GlobalSide, BoxesHoldWhatMegatronStoresThere) {
  MapFile const core = map_file("mcore");
  unsigned const seed = 5;
  std::mt19937 random(seed);
  for (FormCase const& form : forms()) {
    Opened const opened(form, core, {2, 1, 1, 2, 1});
    EXPECT_GT(opened.names.size(), 20U);
    for (StoredName const& name : opened.names) {
      SCOPED_TRACE(fmt::format("{}, {}, seed {}", form.what, name.name, seed));
      Indices const shape = opened.side.shape(name);
      Indices const zero(shape.size(), 0);
      expect_explained(opened, name, zero, shape);
      EXPECT_EQ(opened.side.pieces(name, {}), opened.side.box_pieces(name, zero, shape));
      for (auto const& [begin, end] : random_grid(shape, random))
        expect_explained(opened, name, begin, end);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

/// The boxes that a rank saves: every run of a dimension with every run of the others.
std::vector<std::pair<Indices, Indices>> boxes_of(std::vector<std::vector<Run>> const& rows) {
  std::vector<std::pair<Indices, Indices>> boxes{{{}, {}}};
  for (std::vector<Run> const& dimension : rows) {
    std::vector<std::pair<Indices, Indices>> next;
    for (auto const& [begin, end] : boxes)
      for (auto const& run : dimension) {
        next.emplace_back(begin, end);
        next.back().first.push_back(run.begin);
        next.back().second.push_back(run.end);
      }
    boxes = std::move(next);
  }
  return boxes;
}

/// What the ranks of a mesh save: replicas once.
void expect_ranks_tile(Opened const& opened, MeshSizes const& mesh) {
  std::vector<std::vector<Piece>> pieces(opened.model.tensors().size());
  for (StoredName const& name : opened.names) {
    std::set<std::pair<Indices, Indices>> saved;
    for (MeshPlace const& place : mesh.places())
      for (auto& box : boxes_of(opened.side.rank_rows(name, {place, nullptr})))
        saved.insert(std::move(box));
    Index elements = 0;
    for (auto const& [begin, end] : saved) {
      elements += volume_of(begin, end);
      for (Piece& piece : opened.side.box_pieces(name, begin, end))
        pieces[index(piece.tensor)].push_back(std::move(piece));
    }
    Indices const shape = opened.side.shape(name);
    EXPECT_EQ(elements, volume_of(Indices(shape.size(), 0), shape))
        << name.name << ": the ranks' boxes are no tiling of it, padding included";
  }
  for (std::size_t t = 0; t < opened.model.tensors().size(); ++t) {
    if (!opened.model.exists(TensorId(t))) continue;
    auto const fault =
        tile(pieces[t], opened.model.domain(opened.model.tensors()[t]), opened.model.axes());
    EXPECT_FALSE(fault) << opened.model.tensors()[t].name.text() << ": " << fault->holders
                        << " hold " << fault->where;
  }
}

TEST(GlobalSide, BoxesOfAllRanksTileEveryTensorInEveryMesh) {
  MapFile const core = map_file("mcore");
  for (FormCase const& form : forms())
    for (MeshSizes const& mesh : std::vector<MeshSizes>{{1, 1, 1, 1, 1},
                                                        {1, 1, 1, 2, 1},
                                                        {1, 1, 1, 4, 1},
                                                        {2, 1, 1, 1, 2},
                                                        {2, 1, 1, 2, 1},
                                                        {2, 1, 1, 2, 2},
                                                        {2, 1, 1, 4, 1},
                                                        {2, 1, 1, 4, 2}}) {
      SCOPED_TRACE(fmt::format("{}, tp {} ep {} etp {}", form.what, mesh.tp, mesh.ep, mesh.etp));
      Opened const opened(form, core, mesh);
      expect_ranks_tile(opened, mesh);
    }
}

TEST(GlobalSide, MoreRanksThanGroupsCutTheRowsOfAttention) {
  MapFile const core = map_file("mcore");
  Json const args = slow_args()
                        .set("num_experts", Json())
                        .set("moe_shared_expert_intermediate_size", Json())
                        .set("hidden_size", 8);
  Model model(core, core, {args, "args", 0});
  apply_present(model, core);
  MeshSizes const mesh{8, 1, 1, 1, 8};
  Side const side(model, core,
                  {false, mesh, {{"form", "dist"}, {"stacked", 1}}, {}, {}, "test", true});
  int cut = 0;
  for (StoredName const& name : side.names(nullptr)) {
    if (!name.name.ends_with("decoder.layers.self_attention.linear_qkv.weight")) continue;
    for (int tp = 0; tp < 8; ++tp) {
      auto const rows = side.rank_rows(name, {mesh.mesh().at({{"tp", tp}, {"etp", tp}}), nullptr});
      EXPECT_EQ(rows[1], (Share{{tp * 4, tp * 4 + 4, false}})) << "4 groups of 8 rows over 8 ranks";
      EXPECT_EQ(rows[2], (Share{{0, 8, false}}));
      ++cut;
    }
  }
  EXPECT_EQ(cut, 8);
}

}  // namespace
}  // namespace reshard::test
