#include "tests/support/sample_models.hpp"

namespace reshard::test {

MapFile map_file(std::string const& name) {
  return load_map_file(std::string(RESHARD_SOURCE_DIR) + "/configs/models/" + name + ".toml");
}

namespace {

Json parse(std::string const& text) { return parse_json(text, "sample"); }

/// 6 layers, 4 groups of 2 heads of size 4, hidden 24 (unequal) or 32 (square).
SampleModel dense(std::string const& family, int hidden, bool tied, bool bias, bool qk_norm) {
  auto const flag = [](bool value) { return value ? "true" : "false"; };
  SampleModel sample{family, {}, {}};
  sample.config = parse(fmt::format(
      R"({{"model_type": "{}", "num_hidden_layers": 6, "hidden_size": {}, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4,
          "intermediate_size": 48, "vocab_size": 50, "tie_word_embeddings": {}, "attention_bias": false}})",
      family, hidden, flag(tied)));
  sample.args = parse(fmt::format(
      R"({{"num_layers": 6, "hidden_size": {}, "num_attention_heads": 8, "group_query_attention": true, "num_query_groups": 4, "kv_channels": 4,
          "ffn_hidden_size": 48, "vocab_size": 50, "padded_vocab_size": 64, "make_vocab_size_divisible_by": 8, "swiglu": true, "num_experts": null,
          "normalization": "RMSNorm", "untie_embeddings_and_output_weights": {}, "add_qkv_bias": {}, "qk_layernorm": {},
          "max_position_embeddings": 16}})",
      hidden, flag(!tied), flag(bias), flag(qk_norm)));
  return sample;
}

SampleModel experts(std::string const& family, bool dense_layers) {
  SampleModel sample = dense(family, 32, false, false, family == "qwen3_moe");
  if (family == "mixtral") {
    sample.config.set("num_local_experts", 8).set("intermediate_size", 16);
  } else {
    sample.config.set("num_experts", 8)
        .set("moe_intermediate_size", 16)
        .set("decoder_sparse_step", dense_layers ? 2 : 1);
  }
  sample.args.set("num_experts", 8).set("moe_ffn_hidden_size", 16);
  if (dense_layers) sample.args.set("moe_layer_freq", parse("[0, 1, 0, 1, 0, 1]"));
  return sample;
}

}  // namespace

std::vector<SampleModel> sample_models() {
  return {dense("llama", 24, false, false, false),
          dense("llama", 32, true, false, false),
          dense("qwen2", 24, false, true, false),
          dense("qwen3", 32, true, false, true),
          experts("qwen3_moe", false),
          experts("qwen3_moe", true),
          experts("mixtral", false)};
}

std::vector<SampleMesh> sample_meshes(bool with_experts) {
  std::vector<SampleMesh> meshes = {{{1, 1, 1, 1, 1}}, {{2, 1, 1, 1, 2}}, {{4, 2, 1, 1, 4}},
                                    {{8, 1, 1, 1, 8}}, {{2, 3, 2, 1, 2}}, {{1, 3, 1, 1, 1}, 1, 3}};
  if (!with_experts) return meshes;
  std::vector<SampleMesh> const more = {{{1, 1, 1, 8, 1}}, {{2, 2, 1, 4, 1}},
                                        {{4, 1, 1, 2, 2}}, {{2, 2, 1, 2, 2}, 4, -1},
                                        {{2, 1, 1, 4, 1}}, {{8, 2, 1, 2, 4}}};
  meshes.insert(meshes.end(), more.begin(), more.end());
  return meshes;
}

}  // namespace reshard::test
