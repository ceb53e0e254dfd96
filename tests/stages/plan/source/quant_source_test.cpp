// Quantised weights of a source: the codes and scales that a plan carries, or the values that it
// computes.

#include "stages/plan/source/catalog/quant_source.hpp"

#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

std::size_t projections(JobPlan const& plan) {
  return static_cast<std::size_t>(std::ranges::count_if(
      plan.target.blobs, [](Blob const& blob) { return blob.name.ends_with("proj.weight"); }));
}

TEST(QuantSource, CodesAndScalesAreCarriedAsTheyAre) {
  MadeCheckpoint const source = made_fp8(sample_model("qwen3"));
  JobPlan const plan = planned(source, request_for(FormatId::huggingface));
  EXPECT_TRUE(plan.source.views.empty());
  EXPECT_EQ(plan.plan.target_bytes, bytes_of(source.value));
  for (Blob const& blob : plan.target.blobs)
    EXPECT_EQ(blob.dtype == DType::f8_e4m3, blob.name.ends_with("proj.weight")) << blob.name.text();
  expect_sound(plan);
}

TEST(QuantSource, ValuesAreComputedOnRequest) {
  MadeCheckpoint const source = made_fp8(sample_model("qwen3"));
  PlanRequest request = request_for(FormatId::huggingface);
  request.read.dequantise = true;
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

TEST(QuantSource, ExpertsThatAreJoinedHaveTheSameParts) {
  std::string const lacking = "model.layers.2.mlp.experts.1.up_proj.weight";
  MadeCheckpoint const source = made_fp8(sample_model("qwen3_moe"), "", lacking);
  expect_refused(source, request_for(FormatId::torch_dist), ErrorKind::source,
                 "lacks '" + lacking + "', a part of a quantised weight, and ");
}

TEST(QuantSource, CodesWithoutTheirScaleAreRefused) {
  for (bool const dequantise : {false, true}) {
    PlanRequest request = request_for(FormatId::huggingface);
    request.read.dequantise = dequantise;
    expect_refused(made_fp8(sample_model("qwen3"), "model.layers.2.mlp.up_proj.weight"), request,
                   ErrorKind::source, "model.layers.2.mlp.up_proj.weight");
  }
}

TEST(QuantSource, NamesAloneTellThatNothingIsQuantised) {
  MapFile const family = map_file("qwen3");
  MapFile const schemes = map_file("quant");
  MadeCheckpoint const plain = made_huggingface(sample_model("qwen3"));
  MadeCheckpoint const codes = made_fp8(sample_model("qwen3"));
  EXPECT_FALSE(may_be_quantised(plain.value, view_of(plain.value), schemes));
  EXPECT_TRUE(may_be_quantised(codes.value, view_of(codes.value), schemes));
}

TEST(QuantSource, CodesAndScalesHaveNoLogicalForm) {
  MadeCheckpoint const source = made_fp8(sample_model("qwen3"));
  PlanRequest request = request_for(FormatId::hdf5);
  JobPlan const kept = make_job_plan(source.value, request, {});
  EXPECT_EQ(kept.warnings.front().substr(0, 39), "names and bytes are kept as they are, b");
  request.read.map = "qwen3";
  expect_refused(source, request, ErrorKind::usage,
                 "is quantised, and its parts have no logical form");
}

}  // namespace
}  // namespace reshard::test
