#include "stages/plan/bridge/run_config.hpp"

#include <set>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/text/yaml.hpp"
#include "core/formats/format.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "stages/plan/source/facts/stated_args.hpp"
#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

PlanRequest for_bridge() {
  PlanRequest request = request_for(FormatId::torch_dist);
  request.options.named.program = megatron::TargetProgram::megatron_bridge;
  request.target.folder = "/runs/target";
  return request;
}

/// The args that a reader of run_config.yaml makes of it.
Json args_of_settings(Json const& config) {
  Checkpoint checkpoint;
  checkpoint.format = &format_of(FormatId::torch_dist);
  checkpoint.names = NameOwner::megatron;
  checkpoint.shares.shape.emplace();
  checkpoint.shares.shape->settings = run_config_name;
  checkpoint.shares.shape->facts = *config.find("model");
  checkpoint.shares.shape->table = "megatron_bridge";
  return stated_args(checkpoint, MapLibrary({maps_folder()}));
}

/// Whether Megatron takes one for the other: lists are not told from tuples, nor 1 from 1.0.
bool mean_the_same(Json const& a, Json const& b) {
  auto const number = [](Json const& value) -> std::optional<double> {
    if (value.integer() != nullptr) return static_cast<double>(*value.integer());
    return value.real() != nullptr ? std::optional(*value.real()) : std::nullopt;
  };
  return a == b || (number(a) && number(a) == number(b));
}

/// Args without a meaning in this model, or that another one says.
bool says_nothing(Json const& args, std::string const& key) {
  bool const of_experts = key.starts_with("moe_") && fact(args, "num_experts").is_null();
  bool const of_llama3 =
      key == "rope_scaling_factor" && fact(args, "use_rope_scaling") != Json(true);
  bool const of_heads = key == "softmax_scale" && fact(args, key).is_null();
  return of_experts || of_llama3 || of_heads || key == "is_hybrid_model";
}

std::vector<std::filesystem::path> files_of(std::filesystem::path const& folder,
                                            std::string_view extension) {
  std::vector<std::filesystem::path> files;
  for (auto const& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == extension) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

/// Published configs, made to args and to settings, and read back.
TEST(RunConfig, IsReadBackAsTheArgsThatItWasMadeOf) {
  std::vector<MapFile> maps;
  for (auto const& path : files_of(maps_folder(), ".toml")) maps.push_back(load_map_file(path));
  std::set<std::string> written;
  for (auto const& path : files_of(
           std::filesystem::path(RESHARD_SOURCE_DIR) / "tests" / "data" / "configs", ".json")) {
    BridgeTarget target;
    target.config = parse_json(read_text_file(path, 1U << 20), path.string());
    Json const type = fact(target.config, "model_type");
    auto const map = std::ranges::find_if(maps, [&](MapFile const& one) {
      return !one.args.empty() && one.match_config.empty() && type.text() != nullptr &&
             std::ranges::count(one.model_types, *type.text()) > 0;
    });
    if (map == maps.end()) continue;
    target.args = args_from_config(*map, map_file("mcore"), target.config);
    target.family = std::filesystem::path(map->name).stem().string();
    std::string text;
    if (capture([&] { text = run_config_text(target, MapLibrary({maps_folder()})); })) continue;
    written.insert(target.family);
    Json const read = args_of_settings(parse_yaml(text, run_config_name));
    for (auto const& [key, value] : *target.args.members()) {
      Json const back = fact(read, key);
      bool const unset = value.is_null() || value == Json(false);
      if (says_nothing(target.args, key) || (unset && back.is_null())) continue;
      EXPECT_TRUE(mean_the_same(value, back))
          << path << ": " << key << " = " << value.dump() << ", read back as " << back.dump();
    }
  }
  std::set<std::string> const expected = {
      "bailing_moe",   "deepseek_v2", "deepseek_v3",  "exaone4",     "exaone_moe",
      "gemma",         "gemma2",      "gemma3_text",  "gemma4_text", "glm4_moe",
      "glm4_moe_lite", "glm_moe_dsa", "gpt_oss",      "hy_v3",       "llama",
      "mimo",          "minimax_m2",  "nemotron",     "nemotron_h",  "olmoe",
      "qwen2",         "qwen3",       "qwen3_5_text", "qwen3_moe",   "qwen3_next"};
  EXPECT_EQ(written, expected);
}

TEST(RunConfig, LiesInAFolderOfAnIterationAndNamesTheFolderOfTheTarget) {
  JobPlan const plan = planned(made_huggingface(sample_model("llama")), for_bridge());
  Lines const texts = texts_of(plan);
  EXPECT_EQ(std::ranges::count(texts, "iter_0000000/run_config.yaml"), 1);
  EXPECT_EQ(text_named(plan, "latest_checkpointed_iteration.txt"), "0");
  Json const config = parse_yaml(text_named(plan, run_config_name), run_config_name);
  EXPECT_EQ(*config.find("checkpoint")->find("save")->text(), "/runs/target");
  EXPECT_EQ(*config.find("checkpoint")->find("save_optim"), Json(false));
  EXPECT_EQ(*config.find("model")->find("activation_func")->find("_target_")->text(),
            "torch.nn.functional.silu");
}

TEST(RunConfig, IsRefusedForFamiliesWhoseSettingsAreNotKnown) {
  expect_refused(made_huggingface(sample_model("mixtral")), for_bridge(), ErrorKind::usage,
                 "its settings for models of this family are not known (mixtral.toml)");
}

TEST(RunConfig, OfARunOfMegatronLmIsMadeOfItsArgs) {
  SampleModel const sample = sample_model("mixtral");
  JobPlan const plan = planned(made_megatron(sample, {}), for_bridge());
  Json const config = parse_yaml(text_named(plan, run_config_name), run_config_name);
  EXPECT_EQ(*config.find("model")->find("num_moe_experts"), Json(8));

  BridgeTarget target{
      .args = sample.args, .family = "", .own_args = {"no_input_norm"}, .folder = "/t"};
  MapLibrary const library({maps_folder()});
  target.args.set("no_input_norm", true);
  EXPECT_NE(refused(ErrorKind::usage, [&] { run_config_text(target, library); })
                .find("args.no_input_norm = true is of layers that Megatron-Core does not have"),
            std::string::npos);
  target.args.set("no_input_norm", false).set("swiglu", false).set("gated_linear_unit", true);
  EXPECT_NE(refused(ErrorKind::usage, [&] { run_config_text(target, library); })
                .find("args do not say which activation the gated layers have"),
            std::string::npos);
}

TEST(RunConfig, IsRefusedForModelsThatMegatronBridgeDoesNotBuild) {
  PlanRequest request = for_bridge();
  request.options.named.transformer_impl = "local";
  expect_refused(
      made_huggingface(sample_model("llama")), request, ErrorKind::usage,
      "\"megatron-bridge\" and transformer_impl = \"local\": it does not build such a model");
  request = for_bridge();
  request.options.named.model = megatron::TargetModel::hybrid;
  expect_refused(made_huggingface(sample_model("llama")), request, ErrorKind::usage,
                 "and model = \"hybrid\"");
  request.options.named.program = megatron::TargetProgram::ms_swift;
  expect_refused(made_huggingface(sample_model("llama")), request, ErrorKind::usage,
                 "\"ms-swift\" and model = \"hybrid\"");
}

TEST(RunConfig, SaysThatLayersHaveKeysOfTheirOwn) {
  PlanRequest request = for_bridge();
  request.options.dist.layers = dcp::LayerKeys::separate;
  JobPlan const plan = planned(made_huggingface(sample_model("llama")), request);
  Json const config = parse_yaml(text_named(plan, run_config_name), run_config_name);
  EXPECT_EQ(fact(config, "model.hetereogenous_dist_checkpoint"), Json(true));
}

Json const sizes_of_target = Json::object()
                                 .set("tensor_model_parallel_size", 4)
                                 .set("decoder_first_pipeline_num_layers", 2)
                                 .set("padded_vocab_size", 8);

TEST(RunConfig, OfASourceGetsTheMembersInWhichTheTargetDiffers) {
  EXPECT_EQ(revised_run_config(
                "checkpoint:\n  tensor_model_parallel_size: 1\nmodel:\n  _target_: a.B\n"
                "  virtual_pipeline_model_parallel_size: 2\n  tensor_model_parallel_size: 1\n"
                "  nested:\n    tensor_model_parallel_size: 1\noptimizer:\n"
                "  tensor_model_parallel_size: 1",
                sizes_of_target, false),
            "checkpoint:\n  tensor_model_parallel_size: 1\nmodel:\n  _target_: a.B\n"
            "  virtual_pipeline_model_parallel_size: null\n  tensor_model_parallel_size: 4\n"
            "  nested:\n    tensor_model_parallel_size: 1\n"
            "  num_layers_in_first_pipeline_stage: 2\noptimizer:\n"
            "  tensor_model_parallel_size: 1");
}

TEST(RunConfig, OfASourceInAnotherStyleIsWrittenInBlockStyle) {
  for (char const* text :
       {"model: {_target_: a.B, vocab_size: 7, tensor_model_parallel_size: 1}\nother: 1\n",
        "other: 1\nmodel:\n    _target_: a.B\n    vocab_size: 7\n"
        "    tensor_model_parallel_size: 1\n",
        "\"model\":\n  \"vocab_size\": 7\n  \"tensor_model_parallel_size\": 1\nother: 1",
        "model:\n  vocab_size: 7\n  transformer:\n    tensor_model_parallel_size: 1\nother: 1"}) {
    Json const read = parse_yaml(revised_run_config(text, sizes_of_target, true), "text");
    bool const inner = !fact(read, "model.transformer").is_null();
    EXPECT_EQ(fact(read, inner ? "model.transformer.tensor_model_parallel_size"
                               : "model.tensor_model_parallel_size"),
              Json(4))
        << text;
    EXPECT_EQ(fact(read, "model.num_layers_in_first_pipeline_stage"), Json(2)) << text;
    EXPECT_EQ(fact(read, "model.hetereogenous_dist_checkpoint"), Json(true)) << text;
    EXPECT_EQ(fact(read, "model.should_pad_vocab"), Json(true)) << text;
    EXPECT_EQ(fact(read, "other"), Json(1)) << text;
  }
}

}  // namespace
}  // namespace reshard::test
