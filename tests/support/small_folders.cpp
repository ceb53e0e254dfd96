#include "tests/support/small_folders.hpp"

#include <cstring>
#include <fstream>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::uint64_t bytes_of(SmallTensor const& tensor) {
  std::uint64_t bits_of_all = static_cast<std::uint64_t>(bits(tensor.dtype));
  for (std::uint64_t const n : tensor.shape) bits_of_all *= n;
  return bits_of_all / 8;
}

/// Small positive numbers where arithmetic is done with them, else any bytes.
std::string values(SmallTensor const& tensor) {
  std::string bytes(bytes_of(tensor), '\0');
  std::uint64_t state = 0xcbf29ce484222325U;
  for (char const c : tensor.name) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  auto const next = [&state] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return state >> 33U;
  };
  if (tensor.dtype == DType::f32) {
    for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
      float const value = static_cast<float>(next() % 1000 + 1) / 512.0F;
      std::memcpy(bytes.data() + i, &value, 4);
    }
    return bytes;
  }
  for (char& c : bytes) c = static_cast<char>(next() % 120);
  return bytes;
}

void write(fs::path const& path, std::string const& text) {
  std::ofstream(path, std::ios::binary) << text;
}

struct Llama {
  int hidden = 32;
  int inter = 48;
  int vocab = 40;
  int heads = 4;
  int groups = 2;
  int dim = 8;
  int layers = 2;
  bool tied = false;
};

std::string config(Llama const& m, std::string const& more) {
  return fmt::format(R"({{
  "architectures": ["LlamaForCausalLM"],
  "hidden_act": "silu",
  "head_dim": {},
  "hidden_size": {},
  "intermediate_size": {},
  "max_position_embeddings": 256,
  "model_type": "llama",
  "num_attention_heads": {},
  "num_hidden_layers": {},
  "num_key_value_heads": {},
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "tie_word_embeddings": {},
  "torch_dtype": "bfloat16",{}
  "vocab_size": {}
}}
)",
                     m.dim, m.hidden, m.inter, m.heads, m.layers, m.groups, m.tied, more, m.vocab);
}

/// Weights of a Llama; `linear` says how a matrix is stored.
std::vector<SmallTensor> weights(
    Llama const& m, std::function<void(std::vector<SmallTensor>&, std::string, int, int)> linear) {
  auto const u = [](int n) { return static_cast<std::uint64_t>(n); };
  std::vector<SmallTensor> all;
  all.push_back({"model.embed_tokens.weight", DType::bf16, {u(m.vocab), u(m.hidden)}});
  if (!m.tied) all.push_back({"lm_head.weight", DType::bf16, {u(m.vocab), u(m.hidden)}});
  all.push_back({"model.norm.weight", DType::bf16, {u(m.hidden)}});
  for (int layer = 0; layer < m.layers; ++layer) {
    std::string const at = fmt::format("model.layers.{}.", layer);
    all.push_back({at + "input_layernorm.weight", DType::bf16, {u(m.hidden)}});
    all.push_back({at + "post_attention_layernorm.weight", DType::bf16, {u(m.hidden)}});
    linear(all, at + "self_attn.q_proj", m.heads * m.dim, m.hidden);
    linear(all, at + "self_attn.k_proj", m.groups * m.dim, m.hidden);
    linear(all, at + "self_attn.v_proj", m.groups * m.dim, m.hidden);
    linear(all, at + "self_attn.o_proj", m.hidden, m.heads * m.dim);
    linear(all, at + "mlp.gate_proj", m.inter, m.hidden);
    linear(all, at + "mlp.up_proj", m.inter, m.hidden);
    linear(all, at + "mlp.down_proj", m.hidden, m.inter);
  }
  return all;
}

}  // namespace

void write_safetensors(fs::path const& path, std::vector<SmallTensor> const& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::string data;
  for (SmallTensor const& tensor : tensors) {
    std::string const bytes = values(tensor);
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          tensor.name, name(tensor.dtype), fmt::join(tensor.shape, ","),
                          data.size(), data.size() + bytes.size());
    data += bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::uint64_t const length = header.size();
  std::string front(8, '\0');
  std::memcpy(front.data(), &length, 8);
  write(path, front + header + data);
}

void make_llama_folder(fs::path const& folder, bool tied) {
  fs::create_directories(folder);
  Llama model;
  model.tied = tied;
  write(folder / "config.json", config(model, ""));
  write(folder / "tokenizer.json", "{\"version\": \"1.0\"}\n");
  write_safetensors(
      folder / "model.safetensors",
      weights(model, [](auto& all, std::string const& name, int rows, int columns) {
        all.push_back({name + ".weight",
                       DType::bf16,
                       {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)}});
      }));
}

void make_fp8_llama_folder(fs::path const& folder) {
  fs::create_directories(folder);
  Llama model;
  model.hidden = 128;
  model.inter = 256;
  model.heads = 2;
  model.groups = 2;
  model.dim = 128;
  write(folder / "config.json", config(model, R"(
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                          "weight_block_size": [128, 128]},)"));
  write_safetensors(
      folder / "model.safetensors",
      weights(model, [](auto& all, std::string const& name, int rows, int columns) {
        auto const u = [](int n) { return static_cast<std::uint64_t>(n); };
        all.push_back({name + ".weight", DType::f8_e4m3, {u(rows), u(columns)}});
        all.push_back({name + ".weight_scale_inv", DType::f32, {u(rows / 128), u(columns / 128)}});
      }));
}

}  // namespace reshard::test
