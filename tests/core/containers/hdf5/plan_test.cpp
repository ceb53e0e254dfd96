#include <algorithm>
#include <chrono>
#include <cstdlib>

#include <sys/resource.h>

#include "core/base/threads/workers.hpp"
#include "tests/core/containers/hdf5/container_files.hpp"

namespace reshard::hdf5 {
namespace {

double seconds_of(auto const& call) {
  auto const begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void expect_same(ContainerPlan const& a, ContainerPlan const& b) {
  EXPECT_EQ(a.size_bytes, b.size_bytes);
  EXPECT_EQ(a.offset_bytes, b.offset_bytes);
  EXPECT_EQ(a.object_offset_bytes, b.object_offset_bytes);
  ASSERT_EQ(a.frame.size(), b.frame.size());
  for (std::size_t i = 0; i < a.frame.size(); ++i) {
    EXPECT_EQ(a.frame[i].offset_bytes, b.frame[i].offset_bytes);
    EXPECT_TRUE(a.frame[i].bytes == b.frame[i].bytes) << i;
  }
}

/// Nothing of the frame and the datasets lies on anything else, and all of it in the file.
void expect_disjoint(Sample const& sample, ContainerPlan const& plan) {
  auto all = sample.ranges(plan);
  for (FileSegment const& piece : plan.frame) {
    all.emplace_back(piece.offset_bytes, piece.offset_bytes + piece.bytes.size());
    EXPECT_NE(piece.bytes.front(), '\0');
    EXPECT_NE(piece.bytes.back(), '\0');
  }
  std::erase_if(all, [](auto const& range) { return range.first == range.second; });
  std::ranges::sort(all);
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i - 1].second, all[i].first);
  EXPECT_LE(all.back().second, plan.size_bytes);
}

Sample many(std::size_t count, Index bytes) {
  Sample sample;
  for (std::size_t i = 0; i < count; ++i)
    sample.datasets.push_back(
        {fmt::format("decoder.layers.{}.mlp.experts.{}.weight", i / 64, i % 64),
         DType::u8,
         {1, bytes},
         {"out", "hidden"}});
  return sample;
}

TEST(Hdf5Plan, IsTheSameInEveryRun) {
  Sample const sample = small_sample();
  ContainerPlan const first = sample.plan();
  for (int i = 0; i < 3; ++i) {
    std::vector<std::string> const dirt(1000, std::string(static_cast<std::size_t>(300 + i),
                                                          '\xa5'));  // other bytes in freed memory
    expect_same(sample.plan(), first);
  }
  expect_same(many(3000, 10).plan(), many(3000, 10).plan());
}

TEST(Hdf5Plan, FrameAndDataLieApart) {
  for (std::uint64_t const alignment :
       {std::uint64_t{1}, std::uint64_t{512}, std::uint64_t{4096}, std::uint64_t{1} << 20U})
    expect_disjoint(small_sample(), small_sample().plan(alignment));
  for (Index const bytes : {0, 1, 3, 511, 4096, 70'000})
    expect_disjoint(many(700, bytes), many(700, bytes).plan());
}

TEST(Hdf5Plan, LargeDatasetsBeginAtTheAlignment) {
  Sample sample = small_sample();
  for (Index i = 0; i < 5; ++i)
    sample.datasets.push_back({fmt::format("l{}", i), DType::bf16, {32'768 + i, 1}});
  for (std::uint64_t const alignment : {std::uint64_t{4096}, std::uint64_t{1} << 20U}) {
    auto const ranges = sample.ranges(sample.plan(alignment));
    int aligned = 0;
    for (auto const& [begin, end] : ranges)
      if (end - begin >= 65'536) {
        EXPECT_EQ(begin % alignment, 0U);
        ++aligned;
      }
    EXPECT_EQ(aligned, 6);
  }
}

TEST(Hdf5Plan, ZeroElementsHaveNoPlace) {
  Sample const sample = {.datasets = {{"e", DType::f32, {0}}, {"f", DType::f4, {7, 0}}},
                         .objects = {{"o", 0}},
                         .attributes = {}};
  ContainerPlan const plan = sample.plan();
  EXPECT_EQ(plan.offset_bytes, (std::vector<std::uint64_t>{0, 0}));
  EXPECT_EQ(plan.object_offset_bytes, std::vector<std::uint64_t>{0});
  EXPECT_GT(Sample{}.plan().size_bytes, 0U);
}

TEST(Hdf5Plan, TerabytesTakeNoMemoryAndNoTime) {
  Sample sample;
  for (int i = 0; i < 10; ++i)
    sample.datasets.push_back(
        {fmt::format("w{}", i), DType::bf16, {1 << 20, 1 << 19}, {"out", "in"}});
  sample.plan();  // libhdf5 starts
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  ContainerPlan plan;
  double const seconds = seconds_of([&] { plan = sample.plan(); });
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_GE(plan.size_bytes, std::uint64_t{10} << 40U);
  EXPECT_LT(seconds, 0.5);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 8 * 1024);
  fmt::print("10 TiB: {:.1f} ms\n", seconds * 1e3);
}

TEST(Hdf5Plan, FiftyThousandDatasets) {
  Sample const sample = many(50'000, 4096);
  ContainerPlan plan;
  double const seconds = seconds_of([&] { plan = sample.plan(); });
  std::uint64_t frame_bytes = 0;
  for (FileSegment const& piece : plan.frame) frame_bytes += piece.bytes.size();
  EXPECT_LT(frame_bytes, 50'000U * 600);
  EXPECT_LT(plan.size_bytes, 50'000U * 4096 * 12 / 10);
  EXPECT_LT(seconds, 30);
  fmt::print("50,000 datasets: {:.2f} s, {} of frame in {} pieces, file {}\n", seconds,
             human_bytes(frame_bytes), plan.frame.size(), human_bytes(plan.size_bytes));
}

TEST(Hdf5Plan, RefusesWhatItCannotHold) {
  struct Case {
    Sample sample;
    std::vector<std::string> says;
  };
  auto const tensor = [](DatasetSpec spec) {
    return Sample{.datasets = {std::move(spec)}, .objects = {}, .attributes = {}};
  };
  auto const root = [](std::string key, std::string value) {
    return Sample{
        .datasets = {}, .objects = {}, .attributes = {{std::move(key), std::move(value)}}};
  };
  std::vector<Case> const cases = {
      {{.datasets = {{"a", DType::u8, {1}}, {"a", DType::u8, {2}}},
        .objects = {},
        .attributes = {}},
       {"tensor 'a'", "appears twice"}},
      {{.datasets = {}, .objects = {{"o", 1}, {"o", 1}}, .attributes = {}},
       {"object 'o'", "appears twice"}},
      {tensor({"", DType::u8, {1}}), {"empty"}},
      {tensor({"..", DType::u8, {1}}), {"'..'"}},
      {tensor({"a\n", DType::u8, {1}}), {"'a\\x0a'", "control character"}},
      {tensor({"n", DType::f4, {3, 3}}), {"shape [3, 3] of F4 is not an integer number of bytes"}},
      {tensor({"n", DType::f4, {}}), {"shape [] of F4 is not an integer number of bytes"}},
      {tensor({"n", DType::f6_e2m3, {4, 2}}), {"[4, 2] of F6_E2M3"}},
      {tensor({"n", DType::u8, {-1}}), {"[-1]"}},
      {tensor({"n", DType::u8, std::vector<Index>(33, 1)}), {"33 dimensions, more than 32"}},
      {tensor({"n", DType::u8, {Index{1} << 61}}), {"below 2^61"}},
      {{.datasets = {{"a", DType::u8, {Index{1} << 60}}, {"b", DType::u8, {Index{1} << 60}}},
        .objects = {},
        .attributes = {}},
       {"2305843009213693952 in all, at most 2305843009213693951 fit"}},
      {tensor({"n", DType::u8, {1, 2}, {"x"}}), {"2 dimensions and 1 labels"}},
      {tensor({"n", DType::u8, {1}, {""}}), {"label"}},
      {tensor({"n", DType::u8, {1}, {"a\tb"}}), {"label"}},
      {tensor({"n", DType::u8, {1}, {}, "a\tb"}), {"domain"}},
      {root("format", "x"), {"root attribute 'format'", "reserved by the format"}},
      {root("complete", "x"), {"reserved by the format"}},
      {root("a", std::string("x\0y", 3)), {"UTF-8"}},
      {root("", "x"), {"UTF-8"}},
  };
  for (Case const& each : cases) {
    std::string const sentence = refusal([&] { each.sample.plan(); });
    expect_says(sentence, each.says);
    EXPECT_TRUE(sentence.starts_with("2: ")) << sentence;
  }
  expect_says(refusal([] { small_sample().plan(0); }), {"2: ", "alignment"});
}

TEST(Hdf5Plan, IsTheSameFromManyThreads) {
  Sample sample;
  sample.datasets = {{.name = "a", .dtype = DType::f32, .shape = {3, 5}}};
  ContainerPlan const alone = sample.plan();
  overlapped(64, [&](std::size_t) { EXPECT_EQ(sample.plan().frame, alone.frame); });
}

}  // namespace
}  // namespace reshard::hdf5
