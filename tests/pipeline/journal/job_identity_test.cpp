#include "pipeline/journal/job_identity.hpp"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

namespace reshard {
namespace {

JobPlan plan_with_view() {
  JobPlan plan;
  SourceView view;
  view.kind = ViewKind::dequantise;
  view.name = "layers.0.weight";
  view.stored = {.file = 0, .offset_bytes = 64, .dtype = DType::u8, .shape = {4, 8}};
  view.shape = {4, 8};
  view.scale = StoredPlace{.file = 0, .offset_bytes = 128, .dtype = DType::f32, .shape = {1, 2}};
  plan.source.views.push_back(view);
  plan.source.blobs.add({1, 0, DType::bf16, "layers.0.weight"});
  plan.target.blobs.add({0, 0, DType::bf16, "layers.0.weight"});
  plan.target_adds = {0};
  return plan;
}

JobIdentity identity(JobPlan const& plan) { return identity_of({}, {}, plan); }

TEST(JobIdentity, TheSamePlanIsTheSameJob) {
  EXPECT_EQ(difference(identity(plan_with_view()), identity(plan_with_view())), "");
}

TEST(JobIdentity, WhateverDecidesAboutAValueMakesAnotherPlan) {
  std::vector<std::function<void(JobPlan&)>> const changes{
      [](JobPlan& plan) { plan.source.views[0].kind = ViewKind::add; },
      [](JobPlan& plan) { plan.source.views[0].constant = 1; },
      [](JobPlan& plan) { plan.source.views[0].dtype = DType::f16; },
      [](JobPlan& plan) {
        plan.source.views[0].shape = {8, 4};
      },
      [](JobPlan& plan) { plan.source.views[0].stored.file = 1; },
      [](JobPlan& plan) { plan.source.views[0].stored.dtype = DType::f8_e4m3; },
      [](JobPlan& plan) { plan.source.views[0].scheme.block_columns = 4; },
      [](JobPlan& plan) { plan.source.views[0].scheme.second = quant::SecondScale::times; },
      [](JobPlan& plan) { plan.source.views[0].scale->offset_bytes = 136; },
      [](JobPlan& plan) { plan.source.views[0].scale.reset(); },
      [](JobPlan& plan) { std::swap(plan.source.views[0].scale, plan.source.views[0].second); },
      [](JobPlan& plan) {
        plan.source.blobs.change(0, [](Blob& blob) { blob.dtype = DType::f16; });
      },
      [](JobPlan& plan) {
        plan.target.blobs.change(0, [](Blob& blob) { blob.dtype = DType::f16; });
      },
      [](JobPlan& plan) {
        plan.target.blobs.change(0, [](Blob& blob) { blob.name = "layers.0.bias"; });
      },
      [](JobPlan& plan) { plan.listing.adds = {1}; },
      [](JobPlan& plan) { plan.target_adds = {1}; },
  };
  JobIdentity const before = identity(plan_with_view());
  for (std::size_t i = 0; i < changes.size(); ++i) {
    JobPlan plan = plan_with_view();
    changes[i](plan);
    EXPECT_NE(difference(before, identity(plan)), "") << "change " << i;
  }
}

}  // namespace
}  // namespace reshard
