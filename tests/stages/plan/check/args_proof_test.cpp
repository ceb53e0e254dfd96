// What the args of a Megatron target say of it, read back.
#include "stages/plan/check/args_proof.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "stages/plan/check/core_forms.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

fs::path shipped() { return fs::path(RESHARD_SOURCE_DIR) / "configs" / "models"; }

/// A family's model of a config.json, and the args that its map makes of it.
struct Made {
  Made(std::string const& family, std::string const& config)
      : maps(MapLibrary({shipped()}).choose(family, Json(), Json(), true)),
        model(*maps.family, maps.core, {parse_json(config, "config.json"), "config.json"}) {
    Side const side(model, *maps.family, {});
    apply_family(model, side);
    for (TensorId const tensor : side.optional_tensors())
      model.set_exists(tensor, false);  // numbers of quantisers, which a plain model lacks
    args = Json(Json::Object(model.evaluate(maps.family->args)));
    options = core_forms(model, maps.core).front().options;
  }

  ArgsDifference difference(ArgsReader reader) const {
    return args_difference(model, maps.core, args, options, reader);
  }
  std::string note() const { return strict_load_note(model, maps.core, args, options); }
  Texts warnings() const {
    Texts result;
    check_made_args(model, maps.core, maps.family->name, args, options, result);
    return result;
  }

  MapChoice maps;
  Model model;
  Json args;
  SideOptions options;
};

std::string llama(std::string const& more) {
  return R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 48)" +
         more + "}";
}

std::string nemotron(std::string const& more) {
  return R"({"model_type": "nemotron_h", "vocab_size": 96, "hidden_size": 32, "hybrid_override_pattern": "M*-M", "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 48, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 4)" +
         more + "}";
}

TEST(ArgsProof, ArgsThatSayAllGiveNoWord) {
  for (char const* more :
       {"", R"(, "attention_bias": true, "mlp_bias": true)", R"(, "tie_word_embeddings": true)"}) {
    Made const made("llama", llama(more));
    EXPECT_TRUE(made.difference(ArgsReader::map).empty()) << more;
    EXPECT_EQ(made.note(), "") << more;
    EXPECT_EQ(made.warnings(), Texts()) << more;
  }
}

TEST(ArgsProof, BiasesOfOneSideAreNamedAndCounted) {
  EXPECT_EQ(
      Made("llama", llama(R"(, "attention_bias": true)")).note(),
      "Megatron-Core's own model, made from the target's args, asks for 6 more tensors: "
      "decoder.layers.*.mlp.linear_fc1.bias (3), decoder.layers.*.mlp.linear_fc2.bias (3) (one "
      "switch, add_bias_linear, is for all biases; load with strict=False: Megatron initialises "
      "these to 0)");
  Made const other("llama", llama(R"(, "mlp_bias": true)"));
  EXPECT_EQ(
      shown(other.difference(ArgsReader::megatron).missing),
      "6 tensors: decoder.layers.*.self_attention.linear_proj.bias (3), decoder.layers.*.self_attention.linear_qkv.bias (3)");
  EXPECT_TRUE(other.difference(ArgsReader::map).empty());
}

TEST(ArgsProof, AnOddConvolutionIsSaidAndMegatronIsKnownNotToHaveIt) {
  Made const kernel("nemotron_h", nemotron(R"(, "conv_kernel": 3)"));
  EXPECT_TRUE(kernel.difference(ArgsReader::map).empty());
  ArgsDifference const found = kernel.difference(ArgsReader::megatron);
  ASSERT_EQ(found.shapes.size(), 2U);
  EXPECT_EQ(shown(found.shapes.front()),
            "'decoder.layers.0.mixer.conv1d.weight' is [48, 1, 3], and [48, 1, 4] by args");
  Made const bias("nemotron_h", nemotron(R"(, "use_conv_bias": false)"));
  EXPECT_TRUE(bias.difference(ArgsReader::map).empty());
  EXPECT_EQ(shown(bias.difference(ArgsReader::megatron).missing),
            "2 tensors: decoder.layers.*.mixer.conv1d.bias (2)");
  EXPECT_EQ(Made("nemotron_h", nemotron("")).note(), "");
}

TEST(ArgsProof, AMissingNormIsAWarningAndOwnArgsSettleIt) {
  Made made("llama", llama(""));
  made.model.set_exists(made.model.find_tensor("attn.norm").value(), false);
  EXPECT_EQ(
      made.warnings(),
      (Texts{"the target's args do not describe all of it: args ask for 3 tensors: "
             "decoder.layers.*.self_attention.linear_qkv.layer_norm_weight (3). mcore.toml cannot "
             "read it without help: name this model's map (model.map) and config.json "
             "(source.config) in every later job, and give Megatron code for such layers. "
             "`reshard check-map` shows what to correct in [args] of llama.toml"}));
  made.args.set("no_input_norm", true);
  EXPECT_EQ(made.warnings(), Texts());
  EXPECT_EQ(shown(made.difference(ArgsReader::megatron).missing),
            "3 tensors: decoder.layers.*.self_attention.linear_qkv.layer_norm_weight (3)");
}

TEST(ArgsProof, HeadersSettleWhatOwnArgsDoNot) {
  Made made(
      "gemma2",
      R"({"model_type": "gemma2", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
                          "num_key_value_heads": 2, "intermediate_size": 48})");
  for (char const* norm : {"attn.norm", "ffn.norm"})
    made.model.set_exists(made.model.find_tensor(norm).value(), false);
  EXPECT_EQ(made.warnings(), Texts()) << "a later job sees it in the target's headers";
  EXPECT_EQ(made.difference(ArgsReader::megatron).missing.size(), 2U)
      << "Megatron-Core itself has both norms";
}

TEST(ArgsProof, SizesThatContradictTheModelAreRefused) {
  Made made("llama", llama(""));
  made.args.set("ffn_hidden_size", 96);
  try {
    made.warnings();
    FAIL() << "no error";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_EQ(
        error.sentence(),
        "llama.toml [args]: axis 'inter' is 48 by config.json and 96 by the args that the target would have: no later job could read it. Correct "
        "[args] of the map.");
  }
}

}  // namespace
}  // namespace reshard
