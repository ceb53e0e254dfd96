#include "stages/plan/check/map_check.hpp"

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

fs::path shipped() { return fs::path(RESHARD_SOURCE_DIR) / "configs" / "models"; }

Json config_of() {
  return parse_json(
      R"({"model_type": "marlin", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
                        "num_key_value_heads": 2, "intermediate_size": 48})",
      "config.json");
}

std::string const head = "base = \"llama\"\nmatch = { model_type = [\"marlin\"] }\n";
std::string const fused =
    "[stored.\"{mlp}\"]\n\"gate_up.weight\" = \"ffn: (gate: inter | up: inter) hidden\"\n";
std::string const apart_gone = "\"gate_proj.weight\" = false\n\"up_proj.weight\" = false\n";

/// A map file of one's own, with those of the repository to inherit from.
class MapCheckTest : public testing::Test {
 protected:
  std::string written(std::string const& text) const {
    fs::path const path = scratch_.path() / "marlin.toml";
    std::ofstream(path) << text;
    return path.string();
  }
  MapCheck check(std::string const& text, Json config = config_of()) const {
    return check_map({written(text), MapLibrary({shipped()}), std::move(config), {}});
  }
  std::string first_error(std::string const& text, Json config = config_of()) const {
    MapCheck const found = check(text, std::move(config));
    return found.errors.empty() ? "" : found.errors.front();
  }
  std::string refusal(std::string const& text, Json config = config_of()) const {
    try {
      check(text, std::move(config));
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.sentence();
    }
    return "";
  }

  ScratchFolder scratch_{"map_check"};
};

template <class Items>
auto named(Items const& items, std::string const& name) {
  return std::find_if(items.begin(), items.end(),
                      [&](auto const& item) { return item.name == name; });
}

NamePattern const* pattern(std::vector<NamePattern> const& patterns, std::string const& text) {
  auto const found = std::find_if(patterns.begin(), patterns.end(),
                                  [&](NamePattern const& item) { return item.text == text; });
  return found == patterns.end() ? nullptr : &*found;
}

TEST_F(MapCheckTest, AFusedProjectionOfAnInheritedMapIsProved) {
  MapCheck const found = check(head + fused + apart_gone);
  EXPECT_EQ(found.errors, std::vector<std::string>());
  NamePattern const* names = pattern(found.family, "model.layers.{layer}.mlp.gate_up.weight");
  ASSERT_NE(names, nullptr);
  EXPECT_EQ(names->shape, (std::vector<Index>{96, 32}));
  EXPECT_EQ(names->count, 4);
  EXPECT_EQ(names->tensors.size(), 2);
  for (FormCheck const& form : found.forms) EXPECT_EQ(form.refused, "") << form.form;
  EXPECT_EQ(named(found.tensors, "ffn.gate")->elements, 4 * 48 * 32);
}

TEST_F(MapCheckTest, PatternsOfMegatronSayWhatIsCut) {
  MapCheck const found = check(head);
  auto const of = [&](std::string const& tensor) {
    return found.megatron[named(found.tensors, tensor)->core.front()];
  };
  EXPECT_EQ(of("attn.q").names.text, "decoder.layers.{layer}.self_attention.linear_qkv.weight");
  EXPECT_EQ(of("attn.q").cuts, (std::vector<std::string>{"tp group", "pp layer"}));
  EXPECT_EQ(of("final_norm").cuts, (std::vector<std::string>{"pp at L"}));
}

TEST_F(MapCheckTest, TwoEntriesForOneTensorAreAMistake) {
  std::string const error = first_error(head + fused);
  EXPECT_NE(error.find("model.layers.0.mlp.gate_up.weight' (marlin.toml:4)"), std::string::npos)
      << error;
  EXPECT_NE(error.find("hold the same part of 'ffn.gate'"), std::string::npos) << error;
}

TEST_F(MapCheckTest, ALayerThatNoEntryStoresIsAMistake) {
  std::string const last = "[sets.layer]\nlast = \"layer == 3\"\nothers = \"layer < 3\"\n";
  std::string const error = first_error(
      head + last +
      "[stored.\"{mlp}\"]\n\"down_proj.weight\" = { is = \"ffn.down: hidden inter\", in = \"layer.others\" }\n");
  EXPECT_NE(error.find("no stored tensor holds layer 3"), std::string::npos) << error;
  EXPECT_NE(error.find("'ffn.down'"), std::string::npos) << error;
}

TEST_F(MapCheckTest, UnknownWordsAreNamedWithTheirLine) {
  EXPECT_EQ(
      refusal(head + "[stored.\"{l}\"]\n\"extra.weight\" = \"attn.qq: (group head dim) hidden\"\n"),
      "marlin.toml:4: no logical tensor is called 'attn.qq'. Did you mean 'attn.q'? Use a name of mcore.toml, or declare yours in [tensors].");
  EXPECT_EQ(
      refusal(head +
              "[stored.\"{l}\"]\n\"extra.weight\" = \"attn.gate: (grup head dim) hidden\"\n"),
      "marlin.toml:4: 'attn.gate: (grup head dim) hidden': there is no axis 'grup'. Did you mean 'group'?");
  EXPECT_EQ(
      refusal(
          head +
          "[stored.\"{l}\"]\n\"extra.weight\" = { is = \"attn.norm: hidden\", in = \"layer.atn\" }\n"),
      "marlin.toml:4: there is no set 'layer.atn'. Did you mean 'layer.attn'? Define it in [sets].");
  EXPECT_NE(refusal(head + "[stored.\"{l}\"]\n\"extra.weight\" = \"attn.norm: (hidden\"\n")
                .find("marlin.toml:4: "),
            std::string::npos);
}

TEST_F(MapCheckTest, UnknownWordsNeedNoModel) {
  EXPECT_NE(refusal(head + "[stored.\"{l}\"]\n\"extra.weight\" = \"attn.qq: hidden\"\n", Json()),
            "");
  MapCheck const found = check(head, Json());
  EXPECT_FALSE(found.on_model);
  EXPECT_TRUE(found.errors.empty());
  EXPECT_EQ(found.words.tensors.size(), 28);
}

TEST_F(MapCheckTest, ATensorThatMegatronHasNoPlaceForIsAMistake) {
  std::string const own =
      "[tensors]\n\"layer.attn\" = [ \"marlin.scale: hidden\" ]\n[stored.\"{l}\"]\n\"scale\" = \"marlin.scale: hidden\"\n";
  EXPECT_EQ(
      first_error(head + own),
      "'marlin.scale' (marlin.toml:6) has no stored name in mcore.toml: no Megatron checkpoint "
      "can hold it. Use a logical name of mcore.toml, or list its stored names under `keep`.");
}

TEST_F(MapCheckTest, AModelWithoutAMegatronFormNeedsOnlyTheFamilysSide) {
  std::string const own =
      "[tensors]\n\"layer\" = \"own: hidden\"\n[stored]\n\"own.{layer}\" = \"own: hidden\"\n";
  auto const with = [&](std::string const& reason) {
    return head + "let = { no_megatron = \"" + reason + "\" }\n" + own;
  };
  MapCheck const found = check(with("if(hidden == 32, 'nothing fits', null)"));
  EXPECT_EQ(found.errors, std::vector<std::string>());
  EXPECT_EQ(found.no_megatron, "nothing fits");
  ASSERT_FALSE(found.forms.empty());
  EXPECT_TRUE(std::ranges::all_of(
      found.forms, [](auto const& form) { return form.form.starts_with("Hugging Face"); }));
  EXPECT_EQ(found.forms.front().form, "Hugging Face");
  EXPECT_EQ(named(found.tensors, "own")->elements, 4 * 32);

  std::string const other = with("if(hidden > 32, 'too wide', null)");
  EXPECT_EQ(check(other).no_megatron, "");
  EXPECT_GT(check(other).forms.size(), 1);
  EXPECT_NE(first_error(other).find("'own'"), std::string::npos) << "Megatron has no place for it";
}

TEST_F(MapCheckTest, ArgsMustDescribeTheSameModel) {
  EXPECT_EQ(
      first_error(head + "[args]\nffn_hidden_size = \"2 * inter\"\n"),
      "marlin.toml [args]: axis 'inter' is 48 by config.json and 96 by the args that are made "
      "from it. Correct [args].");
  EXPECT_EQ(
      first_error(head + "[args]\nswiglu = \"false\"\n"),
      "marlin.toml [args], read again by mcore.toml: 'decoder.layers.0.mlp.linear_fc1.weight' is [96, 32], and [48, 32] by args. Correct "
      "[args]; where Megatron has no argument for it, one of own_args in mcore.toml.");
}

TEST_F(MapCheckTest, AConfigMadeOfArgsMustDescribeTheSameModel) {
  EXPECT_EQ(
      first_error(head + "[config]\nintermediate_size = \"inter / 2\"\n"),
      "marlin.toml [config]: 'model.layers.0.mlp.down_proj.weight' is [32, 48] for config.json "
      "and [32, 24] for the one that [config] makes from its args. Correct [config].");
}

TEST_F(MapCheckTest, AKeptNameMustNotBeExplained) {
  EXPECT_EQ(first_error("keep = [ \"model.*norm*\" ]\n" + head),
            "marlin.toml: keep = \"model.*norm*\" matches 'model.layers.0.input_layernorm.weight', "
            "which an entry describes. Make the pattern narrower.");
}

TEST_F(MapCheckTest, EveryNameThatConditionsAskForIsTriedAlone) {
  std::string const choice =
      "[stored.\"{mlp}\"]\n\"down_proj.weight\" = { is = \"ffn.down: hidden inter\", when = \"not has('packed')\" }\n";
  EXPECT_EQ(
      first_error(head + choice),
      "marlin.toml, with 'packed' stored: no entry stores 'ffn.down'. Give that form an entry for it, or correct the conditions with has().");
  MapCheck const found =
      check(head + choice +
            "\"packed\" = { is = \"ffn.down: inter hidden\", when = \"has('packed')\" }\n");
  EXPECT_EQ(found.errors, std::vector<std::string>());
  EXPECT_EQ(found.forms[0].form, "Hugging Face");
  EXPECT_EQ(std::ranges::count(found.forms, "Hugging Face with 'packed'",
                               [](auto const& form) { return form.form; }),
            1);
}

TEST_F(MapCheckTest, FactsThatAreNotStatedAndUnusedNamesAreListed) {
  MapCheck const found = check(head);
  EXPECT_EQ(std::count(found.absent.begin(), found.absent.end(), "head_dim"), 1);
  EXPECT_EQ(std::count(found.absent.begin(), found.absent.end(), "hidden_size"), 0);
  auto const unused = [&](std::string const& name) {
    return std::any_of(found.unused.begin(), found.unused.end(), [&](std::string const& item) {
      return item.find(name) != std::string::npos;
    });
  };
  EXPECT_TRUE(unused("q_proj.bias"));
  EXPECT_FALSE(unused("q_proj.weight"));
}

TEST_F(MapCheckTest, AConfigWithoutTheMapsFactsIsRefused) {
  EXPECT_EQ(
      refusal(head, parse_json(R"({"model_type": "marlin"})", "config.json")),
      "marlin.toml: the model has no layers: L = 'num_hidden_layers' is null by config.json. Check [let] and the names of facts.");
  EXPECT_EQ(
      refusal(head, config_of().set("vocab_size", nullptr)),
      "marlin.toml: the model has no 'embed', so the map describes no part of config.json. Check "
      "[axes], and that an entry stores 'embed'.");
}

TEST_F(MapCheckTest, SizesThatDoNotDivideAreRefused) {
  EXPECT_NE(
      refusal(head, config_of().set("num_attention_heads", 3)).find("3 / 2 is not a whole number"),
      std::string::npos);
}

TEST(MapCheck, MegatronsMapIsProvedOnArgs) {
  Json const args = parse_json(
      R"({"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "ffn_hidden_size": 48, "vocab_size": 96, "swiglu": true,
                                   "num_experts": 6, "moe_layer_freq": [0, 1, 1, 1], "mtp_num_layers": 1, "untie_embeddings_and_output_weights": true})",
      "args.json");
  MapCheck const found = check_map({"mcore", MapLibrary({shipped()}), {}, args});
  EXPECT_EQ(found.errors, std::vector<std::string>());
  EXPECT_TRUE(found.family.empty());
  ASSERT_NE(named(found.tensors, "experts.gate"), found.tensors.end());
  EXPECT_EQ(named(found.tensors, "experts.gate")->elements,
            4 * 6 * 48 * 32);  // three decoder layers and that of the prediction depth
  EXPECT_EQ(named(found.tensors, "attn.q_norm"),
            found.tensors.end());  // what a model may lack is left out
}

TEST(MapCheck, ConfigJsonIsMadeOfArgs) {
  Json const args = parse_json(
      R"({"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "ffn_hidden_size": 48, "vocab_size": 96, "swiglu": true,
                                   "untie_embeddings_and_output_weights": true})",
      "args.json");
  EXPECT_EQ(check_map({"llama", MapLibrary({shipped()}), {}, args}).errors,
            std::vector<std::string>());
}

TEST(MapCheck, NamesAloneAreProvedOnTheirFamily) {
  Json const config = parse_json(
      R"({"model_type": "qwen3_moe", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                                     "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "num_experts": 4, "moe_intermediate_size": 16})",
      "config.json");
  MapCheck const found = check_map({"mlite_qwen3_moe", MapLibrary({shipped()}), config, {}});
  EXPECT_EQ(found.errors, std::vector<std::string>());
  EXPECT_NE(pattern(found.family, "layers.{layer}.moe.experts.fc1.weight{expert}"), nullptr);
}

TEST_F(MapCheckTest, AnAxisThatNoRuleCanCutAndADtypeThatNoTensorHasAreNamed) {
  auto const expect_says = [&](std::string const& text, std::string_view words) {
    std::string const said = refusal(text);
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  expect_says(head + "[rules]\ntp = [ \"grup\" ]\n",
              "there is no axis 'grup' to cut. Did you mean 'group'?");
  expect_says(head +
                  "[stored.\"{mlp}\"]\n\"down_proj.weight\" = { is = \"ffn.down: hidden inter\", "
                  "cast = \"FP8\" }\n",
              "cast = \"FP8\" is not a dtype");
}

TEST_F(MapCheckTest, TheOtherNameOfATensorIsNotThatOfAnother) {
  std::string const error = refusal(
      head +
      "[stored.\"{mlp}\"]\n\"down_proj.weight\" = { is = \"ffn.down: hidden inter\", or = [\"{mlp}up_proj.weight\"] }\n");
  EXPECT_NE(error.find("the other name 'model.layers.0.mlp.up_proj.weight' of "
                       "'model.layers.0.mlp.down_proj.weight' is what"),
            std::string::npos)
      << error;
}

TEST_F(MapCheckTest, AConfigDescribesAFamilyAndArgsDescribeMegatron) {
  auto const expect_says = [](MapCheckRequest const& request, std::string_view words) {
    test::expect_refused(ErrorKind::usage, words, [&] { check_map(request); });
  };
  expect_says({"mcore", MapLibrary({shipped()}), config_of(), {}},
              "--config: mcore.toml describes Megatron's checkpoints");
  expect_says({"smollm3", MapLibrary({shipped()}), {}, Json().set("num_layers", std::int64_t{4})},
              "--args: smollm3.toml has no [config]");
}

}  // namespace
}  // namespace reshard
