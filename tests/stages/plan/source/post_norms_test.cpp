// Models with norms behind attention and MLP and none in front: their headers say so, since
// Megatron has no argument for it.

#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

constexpr char const* attention_norm = "self_attention.linear_qkv.layer_norm_weight";
constexpr char const* mlp_norm = "mlp.linear_fc1.layer_norm_weight";

/// A llama with norms behind attention and MLP too, as Megatron-Bridge names them; without those
/// that end with one of `without`.
MadeCheckpoint with_norms_behind(MadeCheckpoint made, Lines const& without) {
  StoredTable& stored = made.value.stored;
  stored.tensors.keep_if([&](StoredTensor const& tensor) {
    return std::ranges::none_of(without,
                                [&](std::string const& end) { return tensor.name.ends_with(end); });
  });
  return made;
}

std::vector<MadeTensor> norms_behind(int layers, Index hidden) {
  std::vector<MadeTensor> tensors;
  for (int layer = 0; layer < layers; ++layer)
    for (char const* linear : {"self_attention.linear_proj", "mlp.linear_fc2"})
      tensors.push_back(
          {fmt::format("decoder.layers.{}.{}.post_layernorm.weight", layer, linear), {hidden}});
  return tensors;
}

MadeCheckpoint llama_with_norms_behind() {
  SampleModel const sample = sample_model("llama");
  MadeCheckpoint made = made_torch_dist(sample, false);
  made.add_file(norms_behind(static_cast<int>(*sample.args.find("num_layers")->integer()),
                             *sample.args.find("hidden_size")->integer()));
  return made;
}

std::uint64_t weight_bytes(MadeCheckpoint const& made) {
  std::uint64_t bytes = 0;
  for (StoredTensor const& tensor : made.value.stored.tensors)
    bytes += bytes_of(MadeTensor{tensor.name, tensor.shape, tensor.dtype});
  return bytes;
}

TEST(NormsBehind, NeedNoneInFront) {
  MadeCheckpoint const source =
      with_norms_behind(llama_with_norms_behind(), {attention_norm, mlp_norm});
  for (FormatId const format : {FormatId::megatron, FormatId::torch_dist, FormatId::hdf5}) {
    JobPlan const plan = planned(source, request_for(format));
    EXPECT_EQ(plan.plan.source_bytes, weight_bytes(source));
    EXPECT_EQ(plan.plan.target_bytes, plan.plan.source_bytes);
    expect_sound(plan);
  }
}

TEST(NormsBehind, ExcuseNoNormInFrontWhereAnyIsThere) {
  JobPlan const plan = planned(llama_with_norms_behind(), request_for(FormatId::megatron));
  expect_sound(plan);
  for (Lines const& without : {Lines{attention_norm}, Lines{mlp_norm},
                               Lines{"layers.2.self_attention.linear_qkv.layer_norm_weight"}})
    expect_refused(with_norms_behind(llama_with_norms_behind(), without),
                   request_for(FormatId::megatron), ErrorKind::source, "layer_norm_weight");
}

TEST(NormsBehind, AModelWithoutAnyNormsIsRefused) {
  expect_refused(
      with_norms_behind(made_torch_dist(sample_model("llama"), false), {attention_norm, mlp_norm}),
      request_for(FormatId::megatron), ErrorKind::source, "layer_norm_weight");
  Lines const behind_mlp{attention_norm, mlp_norm, "linear_fc2.post_layernorm.weight"};
  expect_refused(with_norms_behind(llama_with_norms_behind(), behind_mlp),
                 request_for(FormatId::megatron), ErrorKind::source, "layer_norm_weight");
}

TEST(NormsBehind, AFamilyThatHasNormsInFrontRequiresThem) {
  PlanRequest request = request_for(FormatId::megatron);
  request.read.map = "llama";
  expect_refused(with_norms_behind(llama_with_norms_behind(), {attention_norm, mlp_norm}), request,
                 ErrorKind::source, "");
}

}  // namespace
}  // namespace reshard::test
