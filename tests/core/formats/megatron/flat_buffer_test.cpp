#include "core/formats/megatron/state/flat_buffer.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace reshard::megatron {
namespace {

/// emb, n0, w0, b0, n1, w1, out: sizes in order of registration.
std::vector<FlatParameter> sample() { return {{720}, {40}, {1280}, {8}, {40}, {1300}, {720}}; }

/// Starts in the file, last registered first.
std::vector<Index> starts(FlatLayout const& layout) {
  std::vector<Index> result;
  for (std::size_t p = layout.slots.size(); p-- > 0;)
    result.push_back(layout.in_file(layout.slots[p]));
  return result;
}

using Numbers = std::vector<Index>;

TEST(FlatBuffer, OneBucketHoldsAllWithStartsRoundedUp) {
  FlatLayout const layout = flat_layout(sample(), {});
  EXPECT_EQ(layout.buckets, Numbers{4304});
  EXPECT_EQ(starts(layout), (Numbers{0, 768, 2112, 2176, 2240, 3520, 3584}));
}

TEST(FlatBuffer, ABucketEndsBehindTheParameterThatFillsIt) {
  FlatLayout const layout = flat_layout(sample(), {.bucket_elements = 1500});
  EXPECT_EQ(layout.buckets, (Numbers{2068, 2192}));
  EXPECT_EQ(starts(layout), (Numbers{0, 768, 2068, 2132, 2196, 3476, 3540}));
}

TEST(FlatBuffer, ASharedEmbeddingHasABucketOfItsOwn) {
  auto parameters = sample();
  parameters.back().own_bucket = true;
  FlatLayout const last = flat_layout(parameters, {});
  EXPECT_EQ(last.buckets, (Numbers{720, 3536}));
  EXPECT_EQ(starts(last), (Numbers{0, 720, 2064, 2128, 2192, 3472, 3536}));

  parameters = sample();
  parameters.front().own_bucket = true;
  FlatLayout const first = flat_layout(parameters, {});
  EXPECT_EQ(first.buckets, (Numbers{3584, 720})) << "the gap before it belongs to the other bucket";
  EXPECT_EQ(starts(first), (Numbers{0, 768, 2112, 2176, 2240, 3520, 3584}));
}

TEST(FlatBuffer, OlderReleasesLeaveNoGaps) {
  for (Index const bucket : {0, 1500, 100}) {
    FlatLayout const layout = flat_layout(sample(), {.bucket_elements = bucket, .alignment = 1});
    EXPECT_EQ(std::accumulate(layout.buckets.begin(), layout.buckets.end(), Index{0}), 4108);
    EXPECT_EQ(starts(layout), (Numbers{0, 720, 2020, 2060, 2068, 3348, 3388}));
  }
}

TEST(FlatBuffer, NoParametersNeedNoBucket) {
  EXPECT_TRUE(flat_layout({}, {}).buckets.empty());
  EXPECT_TRUE(fitted_layout({}, {}, 64));
}

TEST(FlatBuffer, SizesThatEndElsewhereDoNotFit) {
  EXPECT_FALSE(fitted_layout(sample(), Numbers{4305}, 64));
  EXPECT_FALSE(fitted_layout(sample(), Numbers{4303}, 64));
  EXPECT_FALSE(fitted_layout(sample(), Numbers{4304, 64}, 64));
  EXPECT_FALSE(fitted_layout(sample(), Numbers{2100, 2192}, 64)) << "no parameter ends at 2100";
  EXPECT_FALSE(fitted_layout(sample(), {}, 64));
  auto fewer = sample();
  fewer.pop_back();
  EXPECT_FALSE(fitted_layout(fewer, Numbers{4304}, 64));
}

/// Parameters, their rule and what memory looks like: every element of a bucket says whose it is.
struct Filled {
  std::vector<std::vector<int>> buckets;  ///< -1: a gap
};

/// The same rule said in the obvious way: element by element.
Filled fill(std::vector<FlatParameter> const& parameters, FlatRule const& rule) {
  Filled filled;
  std::vector<int> bucket;
  auto const close = [&] {
    if (!bucket.empty()) filled.buckets.push_back(std::move(bucket));
    bucket.clear();
  };
  for (int p = static_cast<int>(parameters.size()) - 1; p >= 0; --p) {
    while (std::ssize(bucket) % rule.alignment != 0) bucket.push_back(-1);
    if (parameters[static_cast<std::size_t>(p)].own_bucket) close();
    for (Index i = 0; i < parameters[static_cast<std::size_t>(p)].elements; ++i)
      bucket.push_back(p);
    if (parameters[static_cast<std::size_t>(p)].own_bucket ||
        (rule.bucket_elements > 0 && std::ssize(bucket) >= rule.bucket_elements))
      close();
  }
  close();
  return filled;
}

class Random {
 public:
  Index below(Index end) { return static_cast<Index>(engine_() % static_cast<std::uint64_t>(end)); }
  std::vector<FlatParameter> parameters() {
    std::vector<FlatParameter> result(static_cast<std::size_t>(1 + below(12)));
    for (FlatParameter& one : result) one.elements = 1 + below(below(2) == 0 ? 8 : 300);
    result.front().own_bucket = below(4) == 0;
    result.back().own_bucket = below(4) == 0;
    return result;
  }

 private:
  std::mt19937_64 engine_{20261124};
};

TEST(FlatBuffer, AgreesWithBuffersFilledElementByElement) {
  Random random;
  for (int round = 0; round < 2000; ++round) {
    auto const parameters = random.parameters();
    FlatRule const rule{.bucket_elements = random.below(3) == 0 ? 0 : 1 + random.below(600),
                        .alignment = random.below(3) == 0 ? 1 : 64};
    Filled const filled = fill(parameters, rule);
    FlatLayout const layout = flat_layout(parameters, rule);
    ASSERT_EQ(layout.buckets.size(), filled.buckets.size());
    for (std::size_t b = 0; b < layout.buckets.size(); ++b)
      ASSERT_EQ(layout.buckets[b], std::ssize(filled.buckets[b]));
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      auto const& bucket = filled.buckets[layout.slots[p].bucket];
      for (Index i = 0; i < parameters[p].elements; ++i)
        ASSERT_EQ(bucket[static_cast<std::size_t>(layout.slots[p].at + i)], static_cast<int>(p));
    }
    ASSERT_EQ(fitted_layout(parameters, layout.buckets, rule.alignment), layout)
        << "the ends of the buckets say the rest";
  }
}

}  // namespace
}  // namespace reshard::megatron
