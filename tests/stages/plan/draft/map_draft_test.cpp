#include "stages/plan/draft/map_draft.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "stages/plan/check/map_check.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

fs::path shipped() { return fs::path(RESHARD_SOURCE_DIR) / "configs" / "models"; }

/// Llama under other prefixes, with gate and up in one tensor and another word for the layers.
DraftRequest marlin(std::string const& base = "") {
  DraftRequest request;
  request.base = base;
  request.library = MapLibrary({shipped()});
  request.config = parse_json(
      R"({"model_type": "marlin", "architectures": ["MarlinForCausalLM"], "vocab_size": 96, "hidden_size": 64,
          "num_blocks": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 90,
          "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false})",
      "config.json");
  auto const add = [&](std::string const& name, std::vector<Index> shape) {
    request.tensors.push_back({name, std::move(shape)});
  };
  add("transformer.embed_tokens.weight", {96, 64});
  add("transformer.norm.weight", {64});
  add("transformer.rope.cos", {16, 4});
  add("lm_head.weight", {96, 64});
  for (int layer = 0; layer < 3; ++layer) {
    std::string const l = "transformer.blocks." + std::to_string(layer) + ".";
    add(l + "input_layernorm.weight", {64});
    add(l + "post_attention_layernorm.weight", {64});
    add(l + "self_attn.q_proj.weight", {64, 64});
    add(l + "self_attn.k_proj.weight", {32, 64});
    add(l + "self_attn.v_proj.weight", {32, 64});
    add(l + "self_attn.o_proj.weight", {64, 64});
    add(l + "mlp.gate_up.weight", {180, 64});
    add(l + "mlp.down_proj.weight", {64, 90});
  }
  return request;
}

TEST(MapDraft, OfARenamedModelIsAMapThatCheckMapProves) {
  DraftRequest const request = marlin();
  MapDraft const draft = draft_map(request);
  EXPECT_EQ(draft.described, request.tensors.size() - 1) << draft.toml;
  ASSERT_EQ(draft.left.size(), 1);
  EXPECT_EQ(draft.left[0].text, "transformer.rope.cos");
  EXPECT_TRUE(draft.lacking.empty());
  EXPECT_NE(draft.toml.find("ffn: (gate: inter | up: inter) hidden"), std::string::npos);

  ScratchFolder const scratch("map_draft");
  fs::path const path = scratch.path() / "marlin.toml";
  std::ofstream(path) << draft.toml;
  MapCheck const check = check_map({path.string(), MapLibrary({shipped()}), request.config, {}});
  EXPECT_EQ(check.errors, std::vector<std::string>()) << draft.toml;
  EXPECT_GT(check.forms.size(), 3);
}

TEST(MapDraft, IsAlsoMadeFromNamesAlone) {
  DraftRequest request = marlin("llama");
  for (DraftTensor& tensor : request.tensors) tensor.shape.reset();
  MapDraft const draft = draft_map(request);
  EXPECT_EQ(draft.base, "llama.toml");
  EXPECT_EQ(draft.described, request.tensors.size() - 1) << draft.toml;
}

TEST(MapDraft, OfNamesThatFitNoFamilyIsRefused) {
  DraftRequest request = marlin();
  request.tensors = {{"encoder.spectrogram", {{7, 11, 13}}}};
  try {
    draft_map(request);
    FAIL() << "a draft that describes nothing";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.sentence()).find("no map of the map folder can describe"),
              std::string::npos)
        << error.sentence();
  }
}

TEST(MapDraft, OfAMapThatDescribesNothingIsRefused) {
  ScratchFolder const scratch("map_draft_of_nothing");
  fs::path const path = scratch.path() / "empty.toml";
  std::ofstream(path) << "let = { L = 1, M = 0 }\naxes = { hidden = 4, layer = 1 }\n";
  test::expect_refused(ErrorKind::usage, "does not describe any tensor of this config.json",
                       [&] { draft_map(marlin(path.string())); });
}

}  // namespace
}  // namespace reshard
