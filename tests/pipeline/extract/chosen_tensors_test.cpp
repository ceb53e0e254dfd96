#include "pipeline/extract/chosen_tensors.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/plan/cells/part_plan.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "tests/support/plan_regions.hpp"

namespace reshard {
namespace {

/// Two tensors by stored names, a file for each: "a.w" [4, 6] and "b.w" [4].
struct Plain {
  std::vector<PlainTensor> tensors{{"a.w", {4, 6}}, {"b.w", {4}}};
  Model model{tensors, "test"};
  Catalog catalog;

  Plain() {
    catalog.files = {"a", "b"};
    catalog.tensors.resize(2);
    for (std::uint32_t t = 0; t < 2; ++t)
      catalog.add({t, 0, DType::f32, tensors[t].name}, logical_pieces(model, TensorId(t)), false);
  }

  std::vector<ChosenTensor> choose(std::vector<std::string> const& patterns,
                                   std::vector<AxisIndex> const& at = {}) const {
    return choose_tensors(model, catalog, patterns, at);
  }
  std::string refused(std::vector<std::string> const& patterns,
                      std::vector<AxisIndex> const& at = {}) const {
    auto const error = capture([&] { (void)choose(patterns, at); });
    if (!error) return "";
    EXPECT_EQ(error->kind(), ErrorKind::usage);
    return error->sentence();
  }
};

TEST(ChosenTensors, AxesAndIndicesAreRead) {
  auto const two = parse_axis_indices("layer=3,expert=15");
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].axis, "layer");
  EXPECT_EQ(two[0].index, 3);
  EXPECT_EQ(two[1].axis, "expert");
  EXPECT_EQ(two[1].index, 15);
  for (char const* wrong : {"", "layer", "layer=", "=3", "layer=x", "layer=3x", "layer=-1",
                            "layer=3,", "layer=1,layer=2", "layer=99999999999999999999"})
    EXPECT_TRUE(capture([&] { (void)parse_axis_indices(wrong); })) << wrong;
}

TEST(ChosenTensors, PatternsChooseByName) {
  Plain const plain;
  EXPECT_EQ(plain.choose({"*"}).size(), 2U);
  auto const one = plain.choose({"?.w", "a.*"});
  ASSERT_EQ(one.size(), 2U);  // once, whatever the number of patterns
  EXPECT_EQ(one[0].shape, (std::vector<Index>{4, 6}));
  EXPECT_NE(plain.refused({"a.w", "c.w"}).find("'c.w'"), std::string::npos);
  EXPECT_NE(plain.refused({"a.ww"}).find("did you mean 'a.w'"), std::string::npos);
}

TEST(ChosenTensors, AnIndexCutsItsAxisAwayAndNothingElseIsRead) {
  Plain const plain;
  auto const rows = plain.choose({"*"}, {{"1.6", 5}});
  ASSERT_EQ(rows.size(), 1U);  // b.w has no such axis
  EXPECT_EQ(rows[0].shape, (std::vector<Index>{4}));
  auto const row = plain.choose({"*"}, {{"0.4", 2}});
  ASSERT_EQ(row.size(), 2U);
  EXPECT_EQ(row[0].shape, (std::vector<Index>{6}));
  EXPECT_TRUE(row[1].shape.empty());

  Catalog target;
  target.files = {"out"};
  target.tensors.resize(2);
  target.add({0, 100, DType::f32, "a.w"}, row[0].pieces, false);
  target.add({0, 200, DType::f32, "b.w"}, row[1].pieces, false);
  Plan const plan = make_part_plan(plain.model, plain.catalog, target, {});
  EXPECT_EQ(plan.target_bytes, 28U);
  std::vector<Region> const regions = test::regions_of(plan);
  ASSERT_EQ(regions.size(), 2U);
  EXPECT_EQ(regions[0].src_offset_bytes, 48U);
  EXPECT_EQ(regions[0].dst_offset_bytes, 100U);
  EXPECT_EQ(regions[0].run_bytes, 24U);
  EXPECT_EQ(regions[1].src_offset_bytes, 8U);
  EXPECT_EQ(regions[1].run_bytes, 4U);
  EXPECT_TRUE(plan.shape_digests.empty());
  // A whole plan refuses such a target.
  EXPECT_TRUE(capture([&] { (void)make_plan(plain.model, plain.catalog, target, {}); }));
}

TEST(ChosenTensors, ACutLeavesIndicesOfTheFirstDimensions) {
  Plain const plain;
  std::vector<std::string> const name{"a.w"};
  std::vector<HalfOpen<Index>> cuts{{1, 3}, {2, 5}};
  auto const part = choose_tensors(plain.model, plain.catalog, name, {}, cuts);
  ASSERT_EQ(part.size(), 1U);
  EXPECT_EQ(part[0].shape, (std::vector<Index>{2, 3}));
  Catalog target;
  target.files = {"out"};
  target.tensors.resize(2);
  target.add({0, 0, DType::f32, "a.w"}, part[0].pieces, false);
  Model model = plain.model;
  model.set_exists(TensorId(1), false);
  Plan const plan = make_part_plan(model, plain.catalog, target, {});
  EXPECT_EQ(plan.target_bytes, 24U);
  std::vector<Region> const regions = test::regions_of(plan);
  ASSERT_EQ(regions.size(), 1U);
  EXPECT_EQ(regions[0].src_offset_bytes, 32U);
  EXPECT_EQ(regions[0].run_bytes, 12U);
  for (HalfOpen<Index> const wrong : {HalfOpen<Index>{-1, 2}, {3, 2}, {0, 5}}) {
    cuts = {wrong};
    EXPECT_TRUE(capture([&] { (void)choose_tensors(plain.model, plain.catalog, name, {}, cuts); }))
        << wrong.begin;
  }
  cuts.assign(3, {0, 1});
  EXPECT_TRUE(capture([&] { (void)choose_tensors(plain.model, plain.catalog, name, {}, cuts); }));
}

TEST(ChosenTensors, WhatHasNoSuchIndexIsRefusedWithWhatIsThere) {
  Plain const plain;
  EXPECT_NE(plain.refused({"*"}, {{"0.4", 4}}).find("0.4 from 0 to 3"), std::string::npos);
  EXPECT_NE(plain.refused({"*"}, {{"expert", 0}}).find("no such axis"), std::string::npos);
}

}  // namespace
}  // namespace reshard
