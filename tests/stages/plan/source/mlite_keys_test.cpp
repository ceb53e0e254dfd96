#include "stages/plan/source/names/mlite_keys.hpp"

#include "stages/plan/source/names/mlite_options.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "core/formats/dcp/keys.hpp"
#include "tests/support/made_checkpoint.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard {
namespace {

using Keys = std::vector<std::string>;

StoredView::Table table_of(Keys const& keys) {
  StoredView::Table table;
  for (std::size_t i = 0; i < keys.size(); ++i) table.emplace(keys[i], i);
  return table;
}

/// The new name of each key, in the order of the keys.
Keys renamed(Keys const& keys) {
  Keys result(keys.size());
  for (auto const& [name, at] : without_stages(table_of(keys), "here")) result[at] = name;
  return result;
}

std::string refusal(std::function<void()> const& work, ErrorKind kind = ErrorKind::source) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), kind) << error.sentence();
    return error.sentence();
  }
  ADD_FAILURE() << "no error";
  return {};
}

void expect_refused(Keys const& keys, std::string const& says) {
  std::string const sentence = refusal([&] { without_stages(table_of(keys), "here"); });
  EXPECT_NE(sentence.find(says), std::string::npos) << sentence;
}

TEST(MliteKeys, OfOneStageLoseTheirPrefix) {
  EXPECT_EQ(
      renamed({"model.embed.embedding.weight", "model.layers.0.mlp_norm.weight",
               "model.layers.1.mlp_norm.weight"}),
      (Keys{"embed.embedding.weight", "layers.0.mlp_norm.weight", "layers.1.mlp_norm.weight"}));
}

TEST(MliteKeys, OfLaterStagesCountTheLayersBefore) {
  EXPECT_EQ(renamed({"model_pp2.layers.0.w", "model_pp0.layers.1.w", "model_pp0.layers.0.w",
                     "model_pp1.layers.0.w", "model_pp2.norm.weight"}),
            (Keys{"layers.3.w", "layers.1.w", "layers.0.w", "layers.2.w", "norm.weight"}));
}

TEST(MliteKeys, AStageMayHaveNoLayers) {
  EXPECT_EQ(renamed({"model_pp0.layers.0.w", "model_pp1.norm.weight"}),
            (Keys{"layers.0.w", "norm.weight"}));
  EXPECT_EQ(renamed({"model_pp1.layers.0.w", "model_pp0.embed.weight"}),
            (Keys{"layers.0.w", "embed.weight"}));
}

TEST(MliteKeys, OfSeveralChunksGoRoundTheStages) {
  EXPECT_EQ(renamed({"model_pp0.0.layers.0.w", "model_pp0.1.layers.0.w", "model_pp1.0.layers.0.w",
                     "model_pp1.1.layers.0.w", "model_pp1.1.norm.weight"}),
            (Keys{"layers.0.w", "layers.2.w", "layers.1.w", "layers.3.w", "norm.weight"}));
  EXPECT_EQ(renamed({"model.0.layers.0.w", "model.1.layers.0.w"}),
            (Keys{"layers.0.w", "layers.1.w"}));
}

TEST(MliteKeys, OfOtherFormsStay) {
  Keys const others{"layers.0.w",
                    "models.layers.0.w",
                    "model_pp.layers.0.w",
                    "model_ppx.layers.0.w",
                    "model_pp0layers",
                    "model",
                    "",
                    "step",
                    "model_pp1234567.layers.0.w",
                    "model_pp99999999999999999999.layers.0.w"};
  EXPECT_EQ(renamed(others), others);
  EXPECT_EQ(renamed({"model.layers.w", "model.layers.99999999999999999999.w"}),
            (Keys{"layers.w", "layers.99999999999999999999.w"}));
}

TEST(MliteKeys, WithAPartMissingAreRefused) {
  expect_refused({"model_pp0.layers.0.w", "model_pp2.layers.0.w"},
                 "here: has keys of stage model_pp2, but no keys of stage model_pp1");
  expect_refused({"model_pp1.layers.0.w"}, "but no keys of stage model_pp0");
  expect_refused({"model_pp0.layers.0.w", "model_pp0.layers.2.w"},
                 "stage model_pp0 has 2 layers, and the highest number is 2");
  expect_refused({"model.layers.1.w"}, "the model has 1 layer, and the highest number is 1");
  expect_refused({"model_pp0.1.layers.0.w", "model_pp1.0.layers.0.w", "model_pp0.0.layers.0.w"},
                 "no keys of stage model_pp1, chunk 1");
  expect_refused({"model_pp999999.layers.0.w", "model_pp0.999999.layers.0.w"},
                 "but no keys of stage model_pp0");
}

TEST(MliteKeys, ThatContradictEachOtherAreRefused) {
  expect_refused({"model.layers.0.w", "model_pp0.layers.0.w"},
                 "'model_pp0.layers.0.w' names a pipeline stage, and 'model.layers.0.w' does "
                 "not");
  expect_refused({"model_pp0.embed.weight", "model_pp1.embed.weight"},
                 "'embed.weight' is in the checkpoint for several pipeline stages");
  expect_refused({"model.layers.0.w", "layers.0.w"},
                 "'layers.0.w' is in the checkpoint for several");
}

// --- options
// ------------------------------------------------------------------------------------------------------

/// 6 layers, 8 experts, moe_inter 16, vocabulary 50, hidden 32.
struct MliteModel {
  explicit MliteModel(Index named, Index rows, Index columns_cut = 1)
      : family(test::map_file("qwen3_moe")),
        core(test::map_file("mcore")),
        map(test::map_file("mlite_qwen3_moe")),
        model(model_of(family, core)) {
    add("embed.embedding.weight", {128, 32});
    for (Index layer = 0; layer < 6; ++layer)
      for (Index i = 0; i < named; ++i) {
        add(fmt::format("layers.{}.moe.experts.fc1.weight{}", layer, i), {rows, 32});
        add(fmt::format("layers.{}.moe.experts.fc2.weight{}", layer, i), {32 * 8 / named, 16},
            columns_cut);
      }
  }

  static Model model_of(MapFile const& family, MapFile const& core) {
    for (test::SampleModel const& sample : test::sample_models())
      if (sample.family == "qwen3_moe")
        return Model(family, core, {sample.config, "config.json", 0});
    throw Error(ErrorKind::internal, "no sample of qwen3_moe");
  }

  void add(std::string const& name, std::vector<Index> const& shape, Index columns_cut = 1) {
    names.emplace(name, stored().tensors.size());
    source.add_cut({name, shape}, {1, columns_cut});
  }

  StoredTable& stored() { return source.value.stored; }
  MliteSource mlite(Index etp = 1, Index tp = 1) { return {stored(), names, "here", map, tp, etp}; }

  std::map<std::string, Json> options(Index etp = 1) {
    return mlite_options(mlite(etp), model, warnings);
  }

  MapFile family, core, map;
  Model model;
  test::MadeCheckpoint source = test::made_dcp({});
  StoredView::Table names;
  std::vector<std::string> warnings;
};

TEST(MliteOptions, ComeFromNamesAndShapes) {
  for (Index const names : {1, 2, 4, 8}) {
    MliteModel at(names, 8 / names * 32);
    std::map<std::string, Json> const options = at.options(2);
    EXPECT_EQ(options.at("rank_experts").dump(), std::to_string(names));
    EXPECT_EQ(options.at("rank_inter").dump(), "8");
    EXPECT_EQ(options.at("vocab_padding").dump(), "78");
  }
}

TEST(MliteOptions, ColumnCutsThatEtpDoesNotExplainDrawAWarning) {
  struct Case {
    Index cuts;
    Index etp;
    bool warns;
  };
  for (Case const& c : std::vector<Case>{
           {1, 1, false}, {2, 1, true}, {2, 2, false}, {1, 2, true}, {4, 2, false}, {2, 4, true}}) {
    MliteModel at(4, 64, c.cuts);
    at.options(c.etp);
    EXPECT_EQ(!at.warnings.empty(), c.warns) << c.cuts << " cuts, etp " << c.etp;
  }
}

TEST(MliteOptions, RowsBehindTheUsualPaddingDrawAWarning) {
  MliteModel at(8, 32);
  at.stored().tensors.change(0, [](StoredTensor& one) { one.shape = {256, 32}; });
  EXPECT_EQ(at.options().at("vocab_padding").dump(), "206");
  ASSERT_EQ(at.warnings.size(), 1U);
  EXPECT_NE(at.warnings[0].find("has 256 rows; the vocabulary of config.json is 50, padded 128"),
            std::string::npos)
      << at.warnings[0];
}

void expect_unfit(MliteModel&& at, std::string const& says) {
  std::string const sentence = refusal([&] { at.options(); });
  EXPECT_NE(sentence.find(says), std::string::npos) << sentence;
}

TEST(MliteOptions, CountsThatTheModelDoesNotHaveAreRefused) {
  expect_unfit(MliteModel(3, 32),
               "each layer names 3 experts, and config.json gives 8, which 3 does not divide");
  expect_unfit(MliteModel(16, 32), "each layer names 16 experts, and config.json gives 8");
  expect_unfit(
      MliteModel(4, 128),
      "has 128 rows, which are 4 expert-parallel ranks of 2 x 16 rows; but 8 experts under 4 names are 2 ranks");
  expect_unfit(MliteModel(4, 100),
               "has 100 rows, which are no whole number of expert-parallel ranks");
  MliteModel hole(4, 64);
  hole.add("layers.0.moe.experts.fc1.weight7", {64, 32});
  expect_unfit(std::move(hole), "names of 5 experts, and the highest number is 7");
  MliteModel routers(4, 64);
  routers.add("layers.0.moe.router.gate.weight", {4, 32});
  expect_unfit(std::move(routers), "chooses among 4 experts, and config.json gives 8");
  MliteModel layers(4, 64);
  layers.add("layers.6.mlp_norm.weight", {32, 1});
  expect_unfit(std::move(layers), "holds 7 layers, and config.json gives 6");
}

TEST(MliteOptions, AnEtpThatDoesNotDivideIsAMistakeOfTheJob) {
  std::string const sentence = refusal([] { MliteModel(4, 64).options(3); }, ErrorKind::usage);
  EXPECT_NE(sentence.find("[source] etp = 3: moe_inter is 16"), std::string::npos) << sentence;
}

TEST(MliteOptions, SharesOfTensorParallelRanksAreThoseThatTheMapAsksFor) {
  MliteModel at(4, 64);
  at.map.options.push_back({"tp_hidden", Expression::parse("1", "here")});
  EXPECT_EQ(mlite_options(at.mlite(1, 4), at.model, at.warnings).at("tp_hidden").dump(), "8");
  std::string sentence =
      refusal([&] { mlite_options(at.mlite(1, 3), at.model, at.warnings); }, ErrorKind::usage);
  EXPECT_NE(sentence.find("[source] tp = 3: hidden is 32"), std::string::npos) << sentence;
  MliteModel without(4, 64);
  sentence = refusal([&] { mlite_options(without.mlite(1, 2), without.model, without.warnings); },
                     ErrorKind::usage);
  EXPECT_NE(sentence.find("[source] tp = 2: this has no effect with the names of"),
            std::string::npos)
      << sentence;
}

TEST(MliteOptions, OfATargetFollowFromItsMesh) {
  MliteModel at(4, 64);
  Mesh const mesh({{"tp", 3}, {"ep", 4}, {"etp", 2}});
  auto const options = mlite_target_options(at.map, at.model, mesh);
  EXPECT_EQ(options.at("rank_experts").dump(), "2");
  EXPECT_EQ(options.at("rank_inter").dump(), "8");
  EXPECT_EQ(options.at("vocab_padding").dump(), "334")
      << "50 rows up to a multiple of 128 and of 3";
  std::string const sentence = refusal(
      [&] {
        mlite_target_options(at.map, at.model, Mesh({{"ep", 3}}));
      },
      ErrorKind::usage);
  EXPECT_NE(sentence.find("[target] layout.ep = 3: expert is 8"), std::string::npos) << sentence;
}

TEST(MliteKeys, OfATargetCountLayersInTheirStage) {
  std::vector<PipelineChunk> chunks(2);
  chunks[0].decoder = {{0, 2}};
  chunks[1].decoder = {{2, 5}};
  chunks[1].rank = 1;
  EXPECT_EQ(mlite_key("layers.1.w", chunks), "model_pp0.layers.1.w");
  EXPECT_EQ(mlite_key("layers.4.w", chunks), "model_pp1.layers.2.w");
  EXPECT_EQ(mlite_key("embed.embedding.weight", chunks), "model_pp0.embed.embedding.weight");
  EXPECT_EQ(mlite_key("mtp_embed.embedding.weight", chunks),
            "model_pp1.mtp_embed.embedding.weight");
  EXPECT_EQ(mlite_key("mtp.layers.0.enorm.weight", chunks), "model_pp1.mtp.layers.0.enorm.weight");
  chunks.pop_back();
  EXPECT_EQ(mlite_key("layers.1.w", chunks), "model.layers.1.w");
}

TEST(MliteShapes, OfOneRankAreRefusedAsLost) {
  for (Index const rows : {32, 16}) {
    MliteModel at(2, rows);
    SideOptions options;
    options.options = at.options();
    Side const side(at.model, at.map, std::move(options));
    apply_family(at.model, side);
    std::string const sentence = refusal([&] { check_whole(at.mlite(), side); });
    EXPECT_NE(sentence.find(fmt::format("the file holds 1/{} of the experts", 128 / rows)),
              std::string::npos)
        << sentence;
  }
  MliteModel whole(2, 128);
  SideOptions options;
  options.options = whole.options();
  Side const side(whole.model, whole.map, std::move(options));
  apply_family(whole.model, side);
  EXPECT_NO_THROW(check_whole(whole.mlite(), side));
}

TEST(MliteShapes, OfAnotherModelAreNoShards) {
  MliteModel at(2, 64);
  at.add("norm.weight", {64, 1});
  StoredTensors& tensors = at.stored().tensors;
  tensors.change(tensors.size() - 1, [](StoredTensor& one) { one.shape = {64}; });
  SideOptions options;
  options.options = at.options();
  Side const side(at.model, at.map, std::move(options));
  apply_family(at.model, side);
  EXPECT_NO_THROW(check_whole(at.mlite(), side)) << "the catalogue has words for it";
}

TEST(MliteSidecars, AreFilesOfOneRank) {
  for (char const* name : {"optimizer_rank_0.pt", "optimizer_rank_127.pt"})
    EXPECT_TRUE(dcp::is_rank_optimizer(name)) << name;
  for (char const* name : {"optimizer_rank_.pt", "optimizer_rank_0", "optimizer_rank_0.pt.tmp",
                           "optimizer.pt", "rng_state_rank_00000.pt"})
    EXPECT_FALSE(dcp::is_rank_optimizer(name)) << name;
  EXPECT_TRUE(dcp::is_rank_rng("rng_state_rank_00012.pt"));
  EXPECT_FALSE(dcp::is_rank_rng("rng_state_rank_x.pt"));
}

}  // namespace
}  // namespace reshard
