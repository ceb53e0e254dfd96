// What `reshard view` says of a layout, against files whose every element tells which one it is.

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <unordered_set>

#include "pipeline/view/view_model.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/plan_world.hpp"

namespace reshard {
namespace {

using test::SampleMesh;
using test::SampleModel;
using test::World;

struct Fixture {
  MapFile core = test::map_file("mcore");
  MapFile family;
  Model model;
  explicit Fixture(SampleModel const& sample)
      : family(test::map_file(sample.family)),
        model(family, core, {sample.config, "config.json", 0}) {
    apply_family(model, Side(model, family, {}));
  }
  World world(SampleMesh const& at) const {
    return test::make_world(
        model,
        Side(model, core,
             {true, at.mesh, {{"form", "grouped"}, {"spec", "te"}}, {}, {}, "[target] layout"}),
        at, DType::f32);
  }
};

ViewSide side_of(World const& world, char const* role) {
  ViewSide side;
  side.role = role;
  for (std::string const& file : world.catalog.files)
    side.owners.push_back({file, file, {}, 0, 0, "", ""});
  return side;
}

/// The index of a tensor's name without "layer.7." in front.
std::size_t model_tensor(Model const& model, ViewTensor const& item) {
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    std::string const& name = model.tensors()[t].name;
    if (item.name == name || (item.name.ends_with("." + name) && model.layer_axis(TensorId(t))))
      return t;
  }
  ADD_FAILURE() << item.name << " is not a tensor of the model";
  return 0;
}

/// Calls `visit` with every index tuple of a box.
template <class Visit>
void for_box(std::vector<Run> const& ranges, std::size_t first, std::size_t axes,
             Visit const& visit) {
  std::vector<Index> at(axes);
  for (std::size_t d = 0; d < axes; ++d) at[d] = ranges[first + d].begin;
  for (;;) {
    visit(at);
    std::size_t d = axes;
    while (d > 0 && ++at[d - 1] == ranges[first + d - 1].end) {
      at[d - 1] = ranges[first + d - 1].begin;
      --d;
    }
    if (d == 0) return;
  }
}

class SideChecker {
 public:
  SideChecker(Model const& model, LayoutView const& view, std::size_t side, World const& world)
      : model_(model), view_(view), side_(side) {
    for (auto const& bytes : world.files) {
      std::unordered_set<std::uint32_t> values;
      for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4) {
        std::uint32_t value = 0;
        std::memcpy(&value, bytes.data() + at, 4);
        values.insert(value);
      }
      held_.push_back(std::move(values));
    }
  }

  void check() {
    std::vector<std::uint64_t> bytes(view_.sides[side_].owners.size());
    for (ViewTensor const& item : view_.tensors) check_item(item, bytes);
    for (std::size_t o = 0; o < bytes.size(); ++o)
      EXPECT_EQ(view_.sides[side_].owners[o].bytes, bytes[o]);
  }

 private:
  void check_item(ViewTensor const& item, std::vector<std::uint64_t>& bytes) {
    std::size_t const t = model_tensor(model_, item);
    std::set<std::vector<Index>> counted;
    std::size_t wrong = 0;
    for (ViewBox const& box : item.boxes[side_]) {
      ASSERT_EQ(box.flags & (box_has_gaps | box_is_computed), 0U) << item.name;
      bytes[box.owner] += static_cast<std::uint64_t>(box.elements) * 4;
      for_box(view_.sides[side_].ranges, box.first_range, item.axes.size(),
              [&](std::vector<Index> const& at) {
                if (!held_[box.owner].contains(value(item, t, at))) ++wrong;
                if (box.flags == 0 && !counted.insert(at).second) ++wrong;
              });
    }
    EXPECT_EQ(wrong, 0U)
        << item.name
        << ": elements that the file does not hold, or that two boxes claim to be read from";
    Index volume = 1;
    for (Index const extent : item.shape) volume *= extent;
    EXPECT_EQ(static_cast<Index>(counted.size()), volume) << item.name;
  }

  std::uint32_t value(ViewTensor const& item, std::size_t t, std::vector<Index> const& at) const {
    std::vector<std::pair<AxisId, Index>> coordinates;
    std::vector<LogicalAxis> const& axes = model_.tensors()[t].axes;
    std::size_t const skipped = axes.size() - at.size();
    if (skipped == 1) coordinates.emplace_back(axes[0].axis, *item.layer);
    for (std::size_t d = 0; d < at.size(); ++d)
      coordinates.emplace_back(axes[skipped + d].axis, at[d]);
    return test::element_value(TensorId(t), coordinates);
  }

  Model const& model_;
  LayoutView const& view_;
  std::size_t side_;
  std::vector<std::unordered_set<std::uint32_t>> held_;
};

TEST(ViewTensors, EveryBoxHoldsWhatItSaysAndEveryElementIsReadOnce) {
  for (SampleModel const& sample : test::sample_models()) {
    if (sample.family != "qwen3_moe" && sample.family != "llama" && sample.family != "deepseek_v3")
      continue;
    Fixture const fixture(sample);
    std::vector<SampleMesh> const meshes =
        test::sample_meshes(fixture.model.axes().find("expert") >= 0);
    for (std::size_t i = 0; i + 1 < meshes.size(); i += 2) {
      SCOPED_TRACE(fmt::format("{}, mesh {}", sample.family, i));
      World const source = fixture.world(meshes[i]);
      World const target = fixture.world(meshes[i + 1]);
      LayoutView view;
      view.sides = {side_of(source, "source"), side_of(target, "target")};
      add_tensors(view, fixture.model, {&source.catalog, &target.catalog});
      ASSERT_FALSE(view.tensors.empty());
      SideChecker(fixture.model, view, 0, source).check();
      SideChecker(fixture.model, view, 1, target).check();
      Plan const plan = make_plan(fixture.model, source.catalog, target.catalog, {});
      std::uint64_t moved = 0;
      for (ViewFlow const& flow : flows_of(plan, source.catalog)) moved += flow.bytes;
      EXPECT_EQ(moved, plan.target_bytes);
    }
  }
}

TEST(ViewTensors, ReadsLayersAndExpertsFromStoredNames) {
  std::vector<PlainTensor> const tensors = {{"model.layers.3.mlp.experts.7.up_proj.weight", {8, 4}},
                                            {"lm_head.weight", {16}}};
  Model const model(tensors, "test");
  Catalog catalog;
  catalog.files = {"a", "b"};
  catalog.tensors.resize(2);
  catalog.add({0, 0, DType::bf16, tensors[0].name},
              {{{}, {{0, 8, 1, 0, 4, 4}, {1, 4, 1, 0, 4, 1}}, {}, 0}}, false);
  catalog.add({1, 0, DType::bf16, tensors[0].name},
              {{{}, {{0, 8, 1, 4, 4, 4}, {1, 4, 1, 0, 4, 1}}, {}, 0}}, false);
  catalog.add({1, 64, DType::bf16, tensors[1].name}, {{TensorId{1}, {{2, 16, 1, 0, 16, 1}}, {}, 0}},
              false);
  LayoutView view;
  view.stored_names = true;
  view.sides.resize(1);
  view.sides[0].owners.resize(2);
  add_tensors(view, model, {&catalog});
  ASSERT_EQ(view.tensors.size(), 2U);
  EXPECT_EQ(view.tensors[0].name, "lm_head.weight");  // no layer comes first
  EXPECT_EQ(view.tensors[1].layer, 3);
  EXPECT_EQ(view.tensors[1].axes, (std::vector<std::string>{"dim 0", "dim 1"}));
  EXPECT_EQ(view.sides[0].owners[0].experts, "7");
  EXPECT_EQ(view.sides[0].owners[0].bytes, 32U);
  EXPECT_EQ(view.sides[0].owners[1].bytes, 64U);
  EXPECT_EQ(view.sides[0].owners[1].tensors, 2U);
}

TEST(ViewTensors, MoreThanAPageHoldsAreRefused) {
  std::vector<PlainTensor> const tensors{{"a", {4}}, {"b", {4}}};
  Model const model(tensors, "test");
  Catalog catalog;
  catalog.files = {"file"};
  catalog.tensors.resize(2);
  for (std::uint32_t t = 0; t < 2; ++t) {
    AxisId const axis = model.tensor(TensorId{t}).axes.front().axis;
    catalog.add({0, 8 * t, DType::bf16, tensors[t].name},
                {{TensorId{t}, {{axis, 4, 1, 0, 4, 1}}, {}, 0}}, false);
  }
  LayoutView view;
  view.title = "large";
  view.stored_names = true;
  view.sides.resize(1);
  view.sides[0].owners.resize(1);
  test::expect_refused(ErrorKind::usage, "large: a page shows at most 1 tensors in 4000000 boxes",
                       [&] { add_tensors(view, model, {&catalog}, 1); });
}

TEST(PartOfAxis, PutsDigitsTogether) {
  LogicalAxis const axis{0, 1, ""};
  EXPECT_EQ(part_of_axis({{}, {{0, 64, 1, 8, 16, 1}}, {}, 0}, axis).runs, (Share{{8, 24}}));
  // Whole fine digits: blocks 2 to 4 of 8 indices.
  EXPECT_EQ(part_of_axis({{}, {{0, 8, 1, 0, 8, 1}, {0, 64, 8, 2, 3, 8}}, {}, 0}, axis).runs,
            (Share{{16, 40}}));
  // Two of every eight.
  AxisRuns const part = part_of_axis({{}, {{0, 24, 8, 0, 3, 2}, {0, 8, 1, 6, 2, 1}}, {}, 0}, axis);
  EXPECT_EQ(part.runs, (Share{{6, 8}, {14, 16}, {22, 24}}));
  EXPECT_EQ(part.count, 6);
  EXPECT_FALSE(part.hull);
}

TEST(PartOfAxis, SaysWhenItShowsMoreThanThereIs) {
  AxisRuns const part =
      part_of_axis({{}, {{0, 4096, 4, 0, 1024, 2}, {0, 4, 1, 1, 2, 1}}, {}, 0}, {0, 1, ""});
  EXPECT_TRUE(part.hull);
  EXPECT_EQ(part.runs, (Share{{1, 4095}}));
  EXPECT_EQ(part.count, 2048);
}

TEST(PartOfAxis, CountsInBlocksWhereTheAxisDoes) {
  EXPECT_EQ(part_of_axis({{}, {{0, 128, 32, 1, 2, 1}}, {}, 0}, {0, 32, ""}).runs, (Share{{1, 3}}));
}

TEST(NumbersInName, FindsThemWhereFrameworksPutThem) {
  auto const found =
      numbers_in_name("decoder.layers.12.mlp.experts.local_experts.3.linear_fc1.weight");
  EXPECT_EQ(found.layer, 12);
  EXPECT_EQ(found.expert, 3);
  EXPECT_EQ(numbers_in_name("transformer.h.4.attn.bias").layer, 4);
  EXPECT_FALSE(numbers_in_name("players.4.x").layer);
  EXPECT_FALSE(numbers_in_name("layers.99999999999999999999.x").layer);
  EXPECT_FALSE(numbers_in_name("").layer);
}

TEST(RangesText, JoinsNeighbours) {
  EXPECT_EQ(ranges_text({}), "");
  EXPECT_EQ(ranges_text({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

}  // namespace
}  // namespace reshard
