#include "core/plan/equal/alike_tensors.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/plan/equal/source_proof.hpp"
#include "core/plan/plan.hpp"

namespace reshard {
namespace {

/// Tensors of one name and one dimension each.
struct PlainSide {
  Catalog catalog;

  explicit PlainSide(std::size_t tensors) {
    catalog.files = {"a", "b"};
    catalog.tensors.resize(tensors);
  }
  void add(Model const& model, std::uint32_t tensor, std::uint32_t file, std::uint64_t offset_bytes,
           DType dtype, Index first, Index count) {
    AxisId const axis = model.tensors()[tensor].axes[0].axis;
    Piece const piece{
        TensorId{tensor}, {{axis, model.axes()[axis].size, 1, first, count, 1}}, {}, 0};
    catalog.add({file, offset_bytes, dtype, model.tensors()[tensor].name}, {piece}, false);
  }
};

Model model_of(std::vector<std::pair<std::string, Index>> const& tensors) {
  std::vector<PlainTensor> plain;
  for (auto const& [name, size] : tensors) plain.push_back({name, {size}});
  return Model(plain, "names");
}

/// Numbers 0, 2 and 4 are alike. The source has 3 in two pieces.
struct SmallJob {
  Model model = model_of({{"a", 4}, {"b", 6}, {"c", 4}, {"d", 4}, {"e", 4}});
  PlainSide source{5};
  PlainSide target{5};

  SmallJob() {
    source.add(model, 0, 0, 100, DType::f32, 0, 4);
    source.add(model, 1, 0, 116, DType::f32, 0, 6);
    source.add(model, 2, 1, 8, DType::f32, 0, 4);
    source.add(model, 3, 1, 24, DType::f32, 0, 2);
    source.add(model, 3, 1, 64, DType::f32, 2, 2);
    source.add(model, 4, 1, 32, DType::f32, 0, 4);
    for (std::uint32_t t = 0; t < 5; ++t)
      target.add(model, t, 0, std::uint64_t{t} * 24, DType::f32, 0,
                 model.axes()[model.tensors()[t].axes[0].axis].size);
  }
};

TEST(AlikeTensors, DifferInTheirPlacesAlone) {
  SmallJob job;
  AlikeTensors alike(job.model, {&job.source.catalog, &job.target.catalog});
  EXPECT_EQ(alike.like(TensorId{0}), std::nullopt);
  EXPECT_EQ(alike.like(TensorId{1}), std::nullopt);
  EXPECT_EQ(alike.like(TensorId{2}), TensorId{0});
  EXPECT_EQ(alike.like(TensorId{3}), std::nullopt);
  EXPECT_EQ(alike.like(TensorId{4}), TensorId{0});
  job.source.catalog.blobs.change(job.source.catalog.blobs.size() - 1,
                                  [](Blob& blob) { blob.dtype = DType::i32; });
  AlikeTensors again(job.model, {&job.source.catalog, nullptr});
  EXPECT_EQ(again.like(TensorId{0}), std::nullopt);
  EXPECT_EQ(again.like(TensorId{4}), std::nullopt);
}

TEST(AlikeTensors, ArePlannedOnce) {
  SmallJob const job;
  Plan const plan = make_plan(job.model, job.source.catalog, job.target.catalog, {});
  ASSERT_EQ(plan.cells.size(), 5U);
  EXPECT_EQ(plan.cells.shapes().size(), 3U);
  EXPECT_EQ(plan.tensor_bytes, (std::vector<std::uint64_t>{16, 24, 16, 16, 16}));
  EXPECT_EQ(plan.source_bytes, 88U);
  EXPECT_EQ(plan.target_bytes, 88U);
  EXPECT_EQ(plan.logical_tensors, 5U);
  EXPECT_EQ(plan.joined_regions, 6U);
  for (std::uint32_t const t : {0U, 2U, 4U}) {
    Cell const& cell = plan.cells[t];
    Blob const& from = job.source.catalog.blobs[job.source.catalog.tensors[t].blob(0)];
    std::vector<Region> const regions = plan.regions_of(cell);
    ASSERT_EQ(regions.size(), 1U);
    EXPECT_EQ(regions[0].src_file, from.file);
    EXPECT_EQ(regions[0].src_offset_bytes, from.offset_bytes);
    EXPECT_EQ(regions[0].to, 0U);
    EXPECT_EQ(regions[0].dst_offset_bytes, std::uint64_t{t} * 24);
    EXPECT_EQ(regions[0].run_bytes, 16U);
    std::vector<DigestRegion> const digests = plan.digests_of(cell);
    ASSERT_EQ(digests.size(), 1U);
    EXPECT_EQ(digests[0].to, DigestId{t});
    EXPECT_EQ(digests[0].src_file, from.file);
    EXPECT_EQ(digests[0].src_offset_bytes, from.offset_bytes);
    EXPECT_EQ(plan.digest_of(cell), DigestId{t});
  }
}

TEST(AlikeTensors, HaveDigestsOfTheirOwn) {
  SmallJob const job;
  DigestWork const work = digest_work(job.model, job.source.catalog, DigestScope::all);
  ASSERT_EQ(work.shares.size(), 6U);
  ASSERT_EQ(work.regions.size(), 6U);
  EXPECT_EQ(work.tensor_bytes, (std::vector<std::uint64_t>{16, 24, 16, 16, 16}));
  PieceShare const& last = work.shares.back();
  EXPECT_EQ(last.digest, DigestId{4});
  EXPECT_EQ(last.blob, 5U);
  EXPECT_EQ(last.same_as, ShareId{5});
  ShareRegion const& region = work.regions.back();
  EXPECT_EQ(region.src_file, 1U);
  EXPECT_EQ(region.src_offset_bytes, 32U);
  EXPECT_EQ(region.dst_offset_bytes, 0U);
  EXPECT_EQ(region.run_bytes, 16U);
  EXPECT_EQ(region.to, ShareId{5});
}

TEST(AlikeTensors, AreProvedOnceAndOthersToo) {
  SmallJob job;
  prove_source(job.model, job.source.catalog);
  job.source.catalog.tensors[3].erase(1);
  EXPECT_THROW(prove_source(job.model, job.source.catalog), Error);
}

TEST(AlikeTensors, WithoutElementsBringNothing) {
  Model const model = model_of({{"a", 0}, {"b", 0}, {"c", 2}});
  PlainSide source(3);
  PlainSide target(3);
  for (std::uint32_t t = 0; t < 3; ++t)
    for (PlainSide* const side : {&source, &target})
      side->add(model, t, 0, 8, DType::f32, 0, t == 2 ? 2 : 0);
  EXPECT_EQ(make_plan(model, source.catalog, target.catalog, {}).cells.size(), 1U);
  EXPECT_EQ(digest_work(model, source.catalog, DigestScope::distinct).shares.size(), 1U);
}

}  // namespace
}  // namespace reshard
