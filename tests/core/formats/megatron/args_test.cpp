#include "core/formats/megatron/mcore/args.hpp"

#include <gtest/gtest.h>

#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::Node;
using pickle::NodeId;

NodeId add_call(Document& document, std::string_view module, std::string_view name,
                std::vector<NodeId> arguments) {
  Node node;
  node.kind = Kind::reduce;
  node.callable = document.add_global(module, name);
  node.arguments = document.add_tuple(std::move(arguments));
  return document.add(std::move(node));
}

/// args_as_json of a Namespace whose one attribute `x` is what `make` adds; nullptr when it was
/// left out.
struct OneFact {
  Json all;
  Json const* x() const { return all.find("x"); }
};

OneFact fact_of(std::function<NodeId(Document&)> const& make) {
  Document document;
  NodeId const args = add_namespace(document, {});
  document.set(args, "x", make(document));
  return {args_as_json(document, args)};
}

struct FactCase {
  std::string_view what;
  std::function<NodeId(Document&)> make;
  std::string_view json;  ///< "" when the attribute is to be left out
};

std::vector<FactCase> const fact_cases = {
    {"None", [](Document& d) { return d.add_none(); }, "null"},
    {"bool", [](Document& d) { return d.add_bool(true); }, "true"},
    {"int", [](Document& d) { return d.add_int(-5); }, "-5"},
    {"float", [](Document& d) { return d.add_real(1e-5); }, "1e-05"},
    {"text", [](Document& d) { return d.add_string("rope"); }, "\"rope\""},
    {"list",
     [](Document& d) {
       return d.add_list({d.add_int(1), d.add_none()});
     },
     "[1, null]"},
    {"tuple",
     [](Document& d) {
       return d.add_tuple({d.add_int(1), d.add_int(2)});
     },
     "[1, 2]"},
    {"empty list", [](Document& d) { return d.add_list(); }, "[]"},
    {"dtype", [](Document& d) { return d.add_global("torch", "bfloat16"); }, "\"torch.bfloat16\""},
    {"a function", [](Document& d) { return d.add_global("torch.nn.functional", "silu"); }, ""},
    {"bytes", [](Document& d) { return d.add_bytes("x"); }, ""},
    {"enum by value",
     [](Document& d) { return add_call(d, "megatron.core.enums", "ModelType", {d.add_int(1)}); },
     "\"megatron.core.enums.ModelType.1\""},
    {"enum by text", [](Document& d) { return add_call(d, "m", "Kind", {d.add_string("a")}); },
     "\"m.Kind.a\""},
    {"enum by member",
     [](Document& d) {
       return add_call(d, "__builtin__", "getattr",
                       {d.add_global("m", "AttnBackend"), d.add_string("flash")});
     },
     "\"m.AttnBackend.flash\""},
    {"signal", [](Document& d) { return add_call(d, "signal", "Signals", {d.add_int(15)}); },
     "\"signal.Signals.15\""},
    {"path", [](Document& d) { return add_call(d, "pathlib", "PosixPath", {d.add_string("/")}); },
     ""},
    {"torch.Size",
     [](Document& d) { return add_call(d, "torch", "Size", {d.add_tuple({d.add_int(1)})}); }, ""},
    {"device", [](Document& d) { return add_call(d, "torch", "device", {d.add_string("cuda")}); },
     ""},
    {"object", [](Document& d) { return d.add_object("m", "Thing", d.add_dict()); }, ""},
    {"list of an object",
     [](Document& d) {
       return d.add_list({d.add_int(1), d.add_object("m", "Thing", d.add_dict())});
     },
     ""},
};

TEST(ArgsAsJson, KeepsFactsAndLeavesOutTheRest) {
  for (auto const& c : fact_cases) {
    SCOPED_TRACE(c.what);
    auto const fact = fact_of(c.make);
    ASSERT_EQ(fact.x() != nullptr, !c.json.empty());
    if (fact.x() == nullptr) continue;
    EXPECT_EQ(fact.x()->dump(), c.json);
  }
}

TEST(ArgsAsJson, ReadsDictsWithTextKeys) {
  auto const plain = fact_of([](Document& d) {
    NodeId const dict = d.add_dict();
    d.set(dict, "a", d.add_int(1));
    d.set(dict, "thing", d.add_object("m", "Thing", d.add_dict()));
    return dict;
  });
  ASSERT_NE(plain.x(), nullptr);
  EXPECT_EQ(plain.x()->dump(), R"({"a": 1})");
  auto const numbers = fact_of([](Document& d) {
    Node node;
    node.kind = Kind::dict;
    node.items = {d.add_int(1), d.add_int(2)};
    return d.add(std::move(node));
  });
  EXPECT_EQ(numbers.x(), nullptr);
}

Json read_back(ArgValues const& values) {
  Document document;
  NodeId const args = add_namespace(document, values);
  return args_as_json(document, args);
}

TEST(ArgsAsJson, HasTheOlderNamesOfRenamedArguments) {
  Json const args =
      read_back({{"layernorm_epsilon", 1e-6}, {"layernorm_zero_centered_gamma", true}});
  EXPECT_EQ(args.find("norm_epsilon")->dump(), "1e-06");
  EXPECT_EQ(args.find("apply_layernorm_1p")->dump(), "true");
  EXPECT_EQ(read_back({{"norm_epsilon", 1e-6}}).dump(), R"({"norm_epsilon": 1e-06})");
}

TEST(ArgsAsJson, SpellsOutYarnWhereItsSettingsAreUnderOtherNames) {
  ArgValues const newer = {{"position_embedding_type", "yarn"},
                           {"rotary_scaling_factor", 8.0},
                           {"mscale", 0.5},
                           {"yarn_beta_fast", Json()},
                           {"yarn_original_max_position_embeddings", Json()}};
  Json const args = read_back(newer);
  EXPECT_EQ(args.find("yarn_rotary_scaling_factor")->dump(), "8.0");
  EXPECT_EQ(args.find("yarn_mscale")->dump(), "0.5");
  EXPECT_EQ(args.find("yarn_original_max_position_embeddings")->dump(), "4096");
  EXPECT_EQ(args.find("yarn_beta_fast")->dump(), "32.0");
  EXPECT_EQ(args.find("yarn_correction_range_round_to_int")->dump(), "true");
  for (ArgValues::value_type const& other :
       {ArgValues::value_type("position_embedding_type", "rope"),
        ArgValues::value_type("multi_latent_attention", true)}) {
    ArgValues values = newer;
    values.push_back(other);
    EXPECT_EQ(read_back(values).find("yarn_mscale"), nullptr) << other.first;
  }
}

TEST(ArgsAsJson, OfNothingIsNull) {
  EXPECT_TRUE(args_as_json(Document{}, pickle::no_node).is_null());
}

TEST(ArgsAsJson, SurvivesAListInItself) {
  auto const fact = fact_of([](Document& d) {
    NodeId const list = d.add_list();
    d.at(list).items = {list};
    return list;
  });
  EXPECT_EQ(fact.x(), nullptr);
}

TEST(ArgsAsJson, RefusesATreeFarLargerThanItsGraph) {
  auto const bomb = [](Document& d) {
    NodeId list = d.add_list({d.add_int(0)});
    for (int level = 0; level < 30; ++level) list = d.add_list({list, list});
    return list;
  };
  EXPECT_TRUE(contains(sentence_of([&] { fact_of(bomb); }), "more than 1000000 values"));
}

TEST(ArgsAsJson, RefusesOneLongTextSharedManyTimes) {
  auto const bomb = [](Document& d) {
    NodeId const text = d.add_string(std::string(std::size_t{1} << 20U, 'x'));
    return d.add_list(std::vector<NodeId>(100'000, text));
  };
  EXPECT_TRUE(contains(sentence_of([&] { fact_of(bomb); }), "67108864 bytes of strings"));
}

TEST(SetArgs, ReplacesAndAppendsAndKeepsTheRest) {
  Document document;
  NodeId const args = add_namespace(
      document, {{"a", Json(1)}, {"params_dtype", Json("torch.float32")}, {"c", Json("old")}});
  document.set(args, "opaque", document.add_object("m", "Thing", document.add_dict()));
  set_args(document, args,
           {{"c", Json()},
            {"params_dtype", Json("torch.bfloat16")},
            {"d", Json(Json::Array{Json(1.5), Json(true)})}});
  EXPECT_EQ(args_as_json(document, args).dump(),
            R"({"a": 1, "params_dtype": "torch.bfloat16", "c": null, "d": [1.5, true]})");
  EXPECT_EQ(document.class_of(document.find(args, "params_dtype")),
            (std::pair<std::string_view, std::string_view>{"torch", "bfloat16"}));
  EXPECT_EQ(document.class_of(document.find(args, "opaque")).second, "Thing");
  EXPECT_EQ(document.class_of(args),
            (std::pair<std::string_view, std::string_view>{"argparse", "Namespace"}));
}

TEST(SetArgs, ATorchWordUnderAnotherKeyStaysText) {
  Document document;
  NodeId const args = add_namespace(document, {{"backend", Json("torch.compile")}});
  EXPECT_EQ(document.at(document.find(args, "backend")).kind, Kind::string);
}

Json args_json(std::string_view text) { return parse_json(text, "test"); }

TEST(ArgsSizes, ReadsWhatMegatronWrites) {
  auto const sizes =
      args_sizes(args_json(R"({"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4,
      "virtual_pipeline_model_parallel_size": null, "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1, "num_experts": 64,
      "ffn_hidden_size": 100, "moe_ffn_hidden_size": 24, "swiglu": true})"),
                 "p");
  EXPECT_EQ(sizes,
            (ArgsSizes{
                .tp = 2, .pp = 4, .vpp = 1, .ep = 8, .etp = 1, .experts = 64, .moe_fc1_rows = 48}));
}

TEST(ArgsSizes, OldDenseArgsMeanOneExpertRank) {
  auto const sizes = args_sizes(
      args_json(R"({"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1})"), "p");
  EXPECT_EQ(
      sizes,
      (ArgsSizes{
          .tp = 2, .pp = 1, .vpp = {}, .ep = 1, .etp = {}, .experts = 0, .moe_fc1_rows = {}}));
  auto const moe = args_sizes(
      args_json(
          R"({"tensor_model_parallel_size": 2, "num_experts": 4, "ffn_hidden_size": 10, "swiglu": false})"),
      "p");
  EXPECT_EQ(
      moe,
      (ArgsSizes{
          .tp = 2, .pp = {}, .vpp = {}, .ep = {}, .etp = {}, .experts = 4, .moe_fc1_rows = 10}));
  EXPECT_EQ(args_sizes(Json(), "p"), ArgsSizes{});
  EXPECT_EQ(args_sizes(Json::object(), "p"), ArgsSizes{});
}

TEST(ArgsSizes, RefusesWhatIsNoSize) {
  for (std::string_view const value : {"0", "-1", "\"2\"", "2.0", "true", "[2]", "1000000"}) {
    auto const args = args_json(fmt::format(R"({{"tensor_model_parallel_size": {}}})", value));
    EXPECT_TRUE(contains(sentence_of([&] { args_sizes(args, "shard 3"); }),
                         "shard 3: args.tensor_model_parallel_size is"))
        << value;
  }
}

TEST(ExpertsApart, WithExpertParallelismAndSince019WhereTheyAreCutOtherwise) {
  Json const old = args_json(R"({"num_experts": 8})");
  Json const of_0_19 = args_json(R"({"num_experts": 8, "tensor_parallel_num_weight_shards": 2})");
  for (Json const& args : {old, of_0_19, Json()}) {
    EXPECT_TRUE(are_experts_apart({.tp = 2, .ep = 2, .etp = 2}, release_of(args)));
    EXPECT_FALSE(are_experts_apart({.tp = 2, .etp = 2}, release_of(args)));
    EXPECT_FALSE(are_experts_apart({.tp = 2, .etp = 0}, release_of(args))) << "etp is tp";
  }
  EXPECT_TRUE(are_experts_apart({.tp = 2, .etp = 1}, release_of(of_0_19)));
  EXPECT_FALSE(are_experts_apart({.tp = 2, .etp = 1}, release_of(old)));
  EXPECT_FALSE(are_experts_apart({.tp = 2, .etp = 1}, release_of(Json())));
}

TEST(WeightSharding, IsSlicesBeyondTensorParallelism) {
  auto const sharding = [](std::string_view text) {
    return weight_sharding(args_json(text)).value_or("");
  };
  EXPECT_EQ(sharding(R"({"gtp_weight_remat_size": 2})"), "args.gtp_weight_remat_size is 2");
  EXPECT_EQ(sharding(R"({"expert_gtp_weight_remat_size": 4, "gtp_weight_remat_size": 1})"),
            "args.expert_gtp_weight_remat_size is 4");
  EXPECT_EQ(
      sharding(R"({"tensor_parallel_num_weight_shards": 4, "tensor_model_parallel_size": 2})"),
      "args.tensor_parallel_num_weight_shards is 4 and args.tensor_model_parallel_size 2");
  EXPECT_EQ(sharding(R"({"expert_tensor_parallel_num_weight_shards": 4,
                         "tensor_model_parallel_size": 2})"),
            "args.expert_tensor_parallel_num_weight_shards is 4 and "
            "args.expert_tensor_parallel_size 2");
}

/// Since 0.19 every checkpoint states them.
TEST(WeightSharding, IsNotTensorParallelismItself) {
  for (std::string_view const text :
       {R"({"tensor_parallel_num_weight_shards": 2, "gtp_weight_remat_size": 1,
            "tensor_model_parallel_size": 2, "expert_tensor_parallel_num_weight_shards": 1,
            "expert_gtp_weight_remat_size": 1, "expert_tensor_parallel_size": 1})",
        R"({"tensor_parallel_num_weight_shards": 2, "tensor_model_parallel_size": 2})",
        R"({"expert_tensor_parallel_num_weight_shards": 2, "tensor_model_parallel_size": 2,
            "expert_tensor_parallel_size": null})",
        R"({"tensor_parallel_num_weight_shards": 2, "gtp_weight_remat_size": 1})",
        R"({"tensor_parallel_num_weight_shards": null, "gtp_weight_remat_size": null})", "{}"}) {
    EXPECT_EQ(weight_sharding(args_json(text)), std::nullopt) << text;
    EXPECT_NO_THROW(refuse_weight_sharding(args_json(text), "p")) << text;
  }
  EXPECT_TRUE(contains(sentence_of([] {
                         refuse_weight_sharding(args_json(R"({"gtp_weight_remat_size": 2})"), "p");
                       }),
                       "p: args.gtp_weight_remat_size is 2: weights are sharded"));
}

TEST(PipelineSpecOfArgs, TakesWhatIsSet) {
  auto const spec = pipeline_spec(
      args_json(R"({"num_layers": 12, "mtp_num_layers": 1, "decoder_first_pipeline_num_layers": 3,
      "decoder_last_pipeline_num_layers": null, "account_for_loss_in_pipeline_split": true, "pipeline_model_parallel_layout": null})"),
      {.tp = 1, .pp = 4, .vpp = 2, .ep = 1, .etp = 1});
  EXPECT_EQ(spec.ranks, 4);
  EXPECT_EQ(spec.chunks_per_rank, 2);
  EXPECT_EQ(spec.decoder_layers, 12);
  EXPECT_EQ(spec.mtp_layers, 1);
  EXPECT_EQ(spec.first_stage_layers, 3);
  EXPECT_EQ(spec.last_stage_layers, -1);
  EXPECT_FALSE(spec.account_for_embedding);
  EXPECT_TRUE(spec.account_for_loss);
  EXPECT_EQ(spec.layout, "");
}

Json target_json(TargetArgs const& target, Json const& source) {
  Json result = Json::object();
  for (auto const& [key, value] : target_args(target, source)) result.set(key, value);
  return result;
}

TEST(TargetArgs, HaveTheShardsOfAWeightWhereTheReleaseCountsThem) {
  TargetArgs target{.sizes = {.tp = 4, .etp = 2}, .pipeline = {}, .release = 19};
  Json const newest = target_json(target, Json());
  EXPECT_EQ(*newest.find("tensor_parallel_num_weight_shards"), Json(4));
  EXPECT_EQ(*newest.find("expert_tensor_parallel_num_weight_shards"), Json(2));
  EXPECT_EQ(release_of(newest), 19);
  target.release = 18;
  EXPECT_EQ(target_json(target, Json()).find("tensor_parallel_num_weight_shards"), nullptr);
  Json const older = target_json(target, newest);
  EXPECT_TRUE(older.find("tensor_parallel_num_weight_shards")->is_null());
  EXPECT_EQ(release_of(older), 18);
  target.release = 0;
  EXPECT_EQ(release_of(target_json(target, newest)), 19) << "those of the source";
}

TEST(NewerArgs, HaveTheNamesOfLaterReleases) {
  ArgValues const newer = newer_args({{"norm_epsilon", Json(1e-6)},
                                      {"apply_layernorm_1p", Json(true)},
                                      {"yarn_beta_fast", Json(32.0)},
                                      {"yarn_mscale", Json(1.0)},
                                      {"num_layers", Json(4)}});
  ArgValues const expected = {{"layernorm_epsilon", Json(1e-6)},
                              {"layernorm_zero_centered_gamma", Json(true)},
                              {"mscale", Json(1.0)}};
  EXPECT_EQ(newer, expected);
}

TEST(TargetArgs, DescribeTheTarget) {
  TargetArgs const target{.sizes = {.tp = 2, .pp = 2, .vpp = 2, .ep = 4, .etp = 1},
                          .pipeline = {.ranks = 2, .chunks_per_rank = 2, .decoder_layers = 8},
                          .padded_vocab = 1024};
  EXPECT_EQ(
      target_json(target, Json()).dump(),
      R"({"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2, )"
      R"("num_layers_per_virtual_pipeline_stage": 2, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1, )"
      R"("decoder_first_pipeline_num_layers": null, "decoder_last_pipeline_num_layers": null, )"
      R"("account_for_embedding_in_pipeline_split": false, "account_for_loss_in_pipeline_split": false, )"
      R"("pipeline_model_parallel_layout": null, "world_size": 8, "data_parallel_size": 2, "ckpt_format": "torch", "padded_vocab_size": 1024})");
}

TEST(TargetArgs, OneChunkHasNoVirtualSizes) {
  auto const json = target_json({.sizes = {.tp = 1, .pp = 2, .vpp = 1, .ep = 1, .etp = 0},
                                 .pipeline = {.ranks = 2, .decoder_layers = 8}},
                                Json());
  EXPECT_TRUE(json.find("virtual_pipeline_model_parallel_size")->is_null());
  EXPECT_TRUE(json.find("num_layers_per_virtual_pipeline_stage")->is_null());
  EXPECT_EQ(json.find("expert_tensor_parallel_size")->dump(), "1");
  EXPECT_EQ(json.find("padded_vocab_size"), nullptr);
}

TEST(TargetArgs, UnevenChunksAreNotStatedAsOneNumber) {
  auto const layout = target_json({.sizes = {.tp = 1, .pp = 2, .vpp = 2, .ep = 1, .etp = 1},
                                   .pipeline = {.ranks = 2,
                                                .chunks_per_rank = 2,
                                                .decoder_layers = 8,
                                                .layout = "Ett|tt|tt|ttL"}},
                                  Json());
  EXPECT_TRUE(layout.find("num_layers_per_virtual_pipeline_stage")->is_null());
  EXPECT_EQ(*layout.find("pipeline_model_parallel_layout")->text(), "Ett|tt|tt|ttL");
  auto const ends = target_json({.sizes = {.tp = 1, .pp = 4, .vpp = 1, .ep = 1, .etp = 1},
                                 .pipeline = {.ranks = 4,
                                              .decoder_layers = 12,
                                              .first_stage_layers = 3,
                                              .last_stage_layers = 1}},
                                Json());
  EXPECT_EQ(ends.find("decoder_first_pipeline_num_layers")->dump(), "3");
  EXPECT_EQ(ends.find("decoder_last_pipeline_num_layers")->dump(), "1");
}

TEST(TargetArgs, VersionDependentAttributesChangeOnlyWhereTheyAre) {
  auto const source = args_json(
      R"({"transformer_pipeline_model_parallel_size": 8, "use_dist_ckpt": true, "context_parallel_size": 3,
          "tensor_parallel_num_weight_shards": 4, "gtp_weight_remat_size": 1, "expert_tensor_parallel_num_weight_shards": 4})");
  auto const json = target_json({.sizes = {.tp = 2, .pp = 2, .vpp = 1, .ep = 4, .etp = 2},
                                 .pipeline = {.ranks = 2, .decoder_layers = 8}},
                                source);
  EXPECT_EQ(json.find("transformer_pipeline_model_parallel_size")->dump(), "2");
  EXPECT_EQ(json.find("use_dist_ckpt")->dump(), "false");
  EXPECT_EQ(json.find("tensor_parallel_num_weight_shards")->dump(), "2");
  EXPECT_EQ(json.find("expert_tensor_parallel_num_weight_shards")->dump(), "2");
  EXPECT_EQ(json.find("gtp_weight_remat_size")->dump(), "1");
  EXPECT_EQ(json.find("expert_gtp_weight_remat_size"), nullptr);
  EXPECT_EQ(json.find("custom_pipeline_layers"), nullptr);
  EXPECT_EQ(json.find("standalone_embedding_stage"), nullptr);
  // Blocks of lcm(2 x 3, 2 x 4) = 24 ranks: 48 in two stages, 24 / 6 = 4 data-parallel ones.
  EXPECT_EQ(json.find("world_size")->dump(), "48");
  EXPECT_EQ(json.find("data_parallel_size")->dump(), "4");
}

}  // namespace
}  // namespace reshard::megatron
