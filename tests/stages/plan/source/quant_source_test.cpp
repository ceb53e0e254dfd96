// Quantised weights of a source: the codes and scales that a plan carries, or the values that it
// computes.

#include "stages/plan/source/quant_source.hpp"

#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

bool is_projection(StoredTensor const& tensor) { return tensor.name.ends_with("proj.weight"); }

/// FP8 codes with a scale for each tile of 16 x 16; without the scale of the tensors `unscaled`.
MadeCheckpoint fp8_folder(std::string const& unscaled = "") {
  SampleModel sample = sample_model("qwen3");
  sample.config.set(
      "quantization_config",
      Json().set("quant_method", "fp8").set("weight_block_size", Json::array().push(16).push(16)));
  MadeCheckpoint const plain = made_huggingface(sample);
  std::vector<MadeTensor> tensors;
  for (StoredTensor const& tensor : plain.value.stored.tensors) {
    bool const codes = is_projection(tensor);
    tensors.push_back({tensor.name, tensor.shape, codes ? DType::f8_e4m3 : tensor.dtype});
    if (!codes || tensor.name == unscaled) continue;
    tensors.push_back({tensor.name + "_scale_inv",
                       {(tensor.shape[0] + 15) / 16, (tensor.shape[1] + 15) / 16},
                       DType::f32});
  }
  MadeCheckpoint made(FormatId::huggingface);
  made.add_file(tensors);
  made.value.config = plain.value.config;
  made.value.beside = plain.value.beside;
  return made;
}

std::size_t projections(JobPlan const& plan) {
  return static_cast<std::size_t>(std::ranges::count_if(
      plan.target.blobs, [](Blob const& blob) { return blob.name.ends_with("proj.weight"); }));
}

TEST(QuantSource, CodesAndScalesAreCarriedAsTheyAre) {
  MadeCheckpoint const source = fp8_folder();
  JobPlan const plan = planned(source, request_for(FormatId::huggingface));
  EXPECT_TRUE(plan.source.views.empty());
  EXPECT_EQ(plan.plan.target_bytes, bytes_of(source.value));
  for (Blob const& blob : plan.target.blobs)
    EXPECT_EQ(blob.dtype == DType::f8_e4m3, blob.name.ends_with("proj.weight")) << blob.name.text();
  expect_sound(plan);
}

TEST(QuantSource, ValuesAreComputedOnRequest) {
  MadeCheckpoint const source = fp8_folder();
  TargetRequest request = request_for(FormatId::huggingface);
  request.dequantise = true;
  JobPlan const plan = planned(source, request);
  EXPECT_EQ(plan.source.views.size(), projections(plan));
  for (SourceView const& view : plan.source.views) {
    EXPECT_EQ(view.kind, ViewKind::dequantise);
    EXPECT_EQ(view.stored.dtype, DType::f8_e4m3);
    ASSERT_TRUE(view.scale);
    EXPECT_EQ(view.scale->dtype, DType::f32);
  }
  for (Blob const& blob : plan.target.blobs) {
    EXPECT_EQ(blob.dtype, DType::bf16) << blob.name.text();
    EXPECT_FALSE(blob.name.ends_with("_scale_inv")) << blob.name.text();
  }
  EXPECT_EQ(plan.plan.target_bytes, bytes_of(made_huggingface(sample_model("qwen3")).value));
  EXPECT_EQ(parse_json(text_named(plan, "config.json"), "config").find("quantization_config"),
            nullptr)
      << "nothing is quantised any more";
}

TEST(QuantSource, CodesWithoutTheirScaleAreRefused) {
  for (bool const dequantise : {false, true}) {
    TargetRequest request = request_for(FormatId::huggingface);
    request.dequantise = dequantise;
    expect_refused(fp8_folder("model.layers.2.mlp.up_proj.weight"), request, ErrorKind::source,
                   "model.layers.2.mlp.up_proj.weight");
  }
}

TEST(QuantSource, NamesAloneTellThatNothingIsQuantised) {
  MapFile const family = map_file("qwen3");
  MapFile const schemes = map_file("quant");
  MadeCheckpoint const plain = made_huggingface(sample_model("qwen3"));
  MadeCheckpoint const codes = fp8_folder();
  EXPECT_FALSE(may_be_quantised(plain.value, view_of(plain.value), schemes));
  EXPECT_TRUE(may_be_quantised(codes.value, view_of(codes.value), schemes));
}

TEST(QuantSource, CodesAndScalesHaveNoLogicalForm) {
  expect_refused(fp8_folder(), request_for(FormatId::hdf5), ErrorKind::usage,
                 "is quantised, and its parts have no logical form");
}

}  // namespace
}  // namespace reshard::test
