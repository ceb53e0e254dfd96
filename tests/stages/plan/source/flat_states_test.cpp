#include "core/formats/dcp/source.hpp"
#include "tests/stages/plan/planning.hpp"
#include "tests/support/decay_groups.hpp"

namespace reshard::test {
namespace {

/// A run of a layer-wise optimizer (Muon): state of matrices is under their names, and that of all
/// other weights in one flat buffer, where each begins at a multiple of 64 elements. `lacking`: a
/// matrix without state.
MadeCheckpoint half_flat(std::string_view lacking = "") {
  constexpr Index places = 109;  // each of 64 elements; embedding and output layer have 48 of them
  MadeCheckpoint made = made_torch_dist(sample_model("llama"), true);
  std::vector<MadeTensor> by_name;
  for (StoredTensor const& weight : made.value.stored.tensors)
    if (weight.shape.size() == 3 && weight.name != lacking)
      for (char const* slot : {"fp32_param", "momentum_buffer"})
        by_name.push_back({fmt::format("chained_0.optimizer.state.{}.{}", slot, weight.name),
                           weight.shape, DType::f32});
  made.add_file(by_name);
  for (char const* slot : {"param", "exp_avg", "exp_avg_sq"})
    made.add_cut({fmt::format("chained_1.optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_("
                              "torch.bfloat16, torch.float32).bucket_idx_0.{}",
                              slot),
                  {places * 64},
                  DType::f32},
                 {places});
  return made;
}

TEST(FlatStates, BesideStateByNameHoldTheOtherWeights) {
  MadeCheckpoint const made = half_flat();
  JobPlan const plan = planned(made, request_for(FormatId::torch_dist));
  Model const& model = *plan.model;
  auto const slot = [&](std::string_view name) {
    return SlotId(std::ranges::find(model.slots(), name) - model.slots().begin());
  };
  auto const has = [&](char const* weight, char const* state) {
    return model.state_of(*model.find_tensor(weight), slot(state)).has_value();
  };
  EXPECT_TRUE(has("ffn.down", "momentum_buffer") && has("ffn.down", "fp32_param"));
  EXPECT_FALSE(has("ffn.down", "exp_avg") || has("ffn.down", "param"));
  EXPECT_TRUE(has("embed", "exp_avg_sq") && has("lm_head", "param") && has("ffn.norm", "exp_avg"));
  EXPECT_FALSE(has("embed", "momentum_buffer"));

  // The last weight that is registered is the first in the buffer, then comes the final norm.
  TensorId const state = *model.state_of(*model.find_tensor("final_norm"), slot("exp_avg"));
  TensorPieces const& pieces = plan.source.tensors[index(state)];
  ASSERT_EQ(pieces.size(), 1U);
  Blob const& found = plan.source.blobs[pieces.blob(0)];
  auto const bucket = std::ranges::find(made.value.stored.tensors, found.name, &StoredTensor::name);
  EXPECT_TRUE(bucket->name.ends_with("bucket_idx_0.exp_avg"));
  EXPECT_EQ(found.offset_bytes, made.value.stored.payload_offset_bytes(bucket->first_chunk + 48));
}

TEST(FlatStates, ThatWouldHoldOneMoreWeightAreRefused) {
  expect_refused(half_flat("decoder.layers.mlp.linear_fc2.weight"),
                 request_for(FormatId::torch_dist), ErrorKind::source,
                 "no order known to this version gives these buckets");
}

// --- state under numbers ----------------------------------------------------------------------

/// The weights of a small Llama in the order of registration: those that decay, or the others.
Lines members(bool decay) {
  Lines names;
  if (decay) names.emplace_back("embedding.word_embeddings.weight");
  for (int layer = 0; layer < 6; ++layer)
    for (char const* rest :
         {"self_attention.linear_proj.weight", "self_attention.linear_qkv.layer_norm_weight",
          "self_attention.linear_qkv.weight", "mlp.linear_fc1.layer_norm_weight",
          "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"})
      if (std::string_view(rest).ends_with("norm_weight") != decay)
        names.push_back(fmt::format("decoder.layers.{}.{}", layer, rest));
  names.emplace_back(decay ? "output_layer.weight" : "decoder.final_layernorm.weight");
  return names;
}

/// The settings of two groups, as an optimizer of torch_dist has them.
std::shared_ptr<dcp::CommonState const> two_groups() {
  auto common = std::make_shared<dcp::CommonState>();
  pickle::Document& document = common->torch.document;
  pickle::NodeId const optimizer = document.add_dict();
  document.set(optimizer, "param_groups", add_decay_groups(document));
  document.root = common->root = document.add_dict();
  document.set(document.root, "optimizer", optimizer);
  return common;
}

/// --ckpt-format torch_dcp of two ranks: rows of each are apart, or the columns of the embedding.
MadeCheckpoint numbered(bool columns) {
  MadeCheckpoint const dist = made_torch_dist(sample_model("llama"), false);
  MadeCheckpoint made(FormatId::dcp);
  made.value.format = &dcp::format_of(dcp::Flavour::torch_dcp);
  made.value.names = NameOwner::megatron;
  made.value.run.args = dist.value.run.args;
  made.value.chunked.common = two_groups();
  made.begin_file();
  std::map<std::string, std::vector<Index>> shapes;
  for (StoredTensor const& weight : dist.value.stored.tensors) {
    std::vector<Index> const shape = weight.shape;
    shapes[weight.name] = shape;
    made.add_cut({"model." + std::string(weight.name), shape}, std::vector<Index>(shape.size(), 1));
  }
  int number = 0;
  for (int const group : {0, 1}) {
    int member = 0;
    for (std::string const& name : members(group == 0)) {
      std::vector<Index> const& shape = shapes.at(name);
      std::vector<Index> parts(shape.size(), 1);
      parts[columns && number == 0 ? 1 : 0] = 2;
      made.add_cut({fmt::format("optimizer.fp32_from_fp16_params.{}.{}", group, member++), shape,
                    DType::f32},
                   parts);
      for (char const* slot : {"exp_avg", "exp_avg_sq"})
        made.add_cut(
            {fmt::format("optimizer.optimizer.state.{}.{}", number, slot), shape, DType::f32},
            parts);
      ++number;
    }
  }
  return made;
}

TEST(NumberedStates, GoTheWayOfTheirWeights) {
  MadeCheckpoint const made = numbered(false);
  JobPlan const plan = planned(made, request_for(FormatId::torch_dist, {2}));
  Model const& model = *plan.model;
  EXPECT_EQ(model.slots(), (Lines{"weight", "fp32_param", "exp_avg", "exp_avg_sq"}));
  TensorId const norm = *model.state_of(*model.find_tensor("final_norm"), SlotId(2));
  TensorPieces const& pieces = plan.source.tensors[index(norm)];
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(plan.source.blobs[pieces.blob(0)].name.text(), "optimizer.optimizer.state.38.exp_avg");
}

TEST(NumberedStates, OfColumnsAreRefused) {
  expect_refused(numbered(true), request_for(FormatId::torch_dist), ErrorKind::source,
                 "is not cut into whole rows, as torch's FSDP2 cuts it");
}

}  // namespace
}  // namespace reshard::test
