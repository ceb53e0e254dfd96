// Rounded master weights have the digest of their weights, however they are cut into parts; second
// moments that none can be are found and named.

#include "stages/stream/state_sums.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/hash/crc64.hpp"
#include "core/quant/rounded.hpp"

namespace reshard {
namespace {

constexpr Index rows = 6;
constexpr Index columns = 10;

/// A weight "w" (6 x 10, BF16) with a master and a second moment.
struct Sample {
  Model model = Model(std::vector<PlainTensor>{{"w", {rows, columns}}}, "here");
  Catalog catalog;
  Plan plan;
  std::vector<std::string> files{"file.bin"};
  std::vector<float> values;

  Sample() {
    std::vector<std::string> const slots{"param", "exp_avg_sq"};
    model.add_slots(slots);
    catalog.files = files;
    catalog.tensors.resize(model.tensors().size());
    add(TensorId{0}, DType::bf16);
    for (SlotId const slot : {SlotId{1}, SlotId{2}}) {
      model.set_exists(model.in_slot(TensorId{0}, slot), true);
      add(model.in_slot(TensorId{0}, slot), DType::f32);
    }
    plan.tensor_bytes.assign(3, rows * columns * 4);
    plan.checks = state_checks(model, catalog, DigestId{3});
    for (Index i = 0; i < rows * columns; ++i)
      values.push_back(static_cast<float>(i) * 0.3713F + 0.0001F);
  }

  void add(TensorId tensor, DType dtype) {
    catalog.add({0, 0, dtype, "stored"}, {{tensor, {}, {}, 0}}, false);
  }

  std::uint64_t rounded_digest() const {
    std::vector<std::uint16_t> rounded;
    for (float const value : values) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      rounded.push_back(quant::bf16_of(bits));
    }
    return crc64(std::as_bytes(std::span(rounded)));
  }

  /// Rows [first, first + count) of columns [from, from + width), as they lie in `values`.
  DigestPart part(SlotId slot, Index first, Index count, Index from, Index width) const {
    auto const place = static_cast<std::uint64_t>(first * columns + from) * 4;
    return {digest_of(model.in_slot(TensorId{0}, slot)),
            place,
            place,
            static_cast<std::uint64_t>(width) * 4,
            {{static_cast<std::uint64_t>(count), columns * 4, columns * 4}},
            rows * columns * 4,
            0,
            place};
  }

  std::byte const* staging() const { return std::as_bytes(std::span(values)).data(); }
};

TEST(StateSums, ThereIsOneCheckForEachSlotThatHasARule) {
  Sample const sample;
  ASSERT_EQ(sample.plan.checks.size(), 2U);
  EXPECT_EQ(sample.plan.checks[0].rule, StateRule::rounds_to_weight);
  EXPECT_EQ(sample.plan.checks[0].rounded, DigestId{3});
  EXPECT_EQ(sample.plan.checks[1].rule, StateRule::not_negative);
}

TEST(StateSums, SharesOfAllPartsAreTheDigestOfTheRoundedTensor) {
  Sample const sample;
  StateSums const sums(sample.plan, sample.model, sample.files);
  std::vector<DigestShare> shares;
  for (auto const& [first, count, from, width] :
       std::vector<std::array<Index, 4>>{{0, 6, 0, 3}, {0, 2, 3, 7}, {2, 4, 3, 1}, {2, 4, 4, 6}})
    sums.add(sample.part(SlotId{1}, first, count, from, width), sample.staging(), shares);
  std::uint64_t digest = 0;
  std::uint64_t bytes = 0;
  for (DigestShare const& share : shares) {
    EXPECT_EQ(share.digest, DigestId{3});
    digest ^= share.share;
    bytes += share.bytes;
  }
  EXPECT_EQ(digest, sample.rounded_digest());
  EXPECT_EQ(bytes, rows * columns * 2U);
}

TEST(StateSums, AnotherMasterHasAnotherDigest) {
  Sample sample;
  std::uint64_t const before = sample.rounded_digest();
  sample.values[7] = std::nextafter(sample.values[7], 1000.F);
  EXPECT_EQ(sample.rounded_digest(), before) << "it rounds to the same weight";
  sample.values[7] *= 1.01F;
  EXPECT_NE(sample.rounded_digest(), before);
}

TEST(StateSums, MomentsGiveNoShare) {
  Sample sample;
  sample.values[3] = -0.F;
  StateSums const sums(sample.plan, sample.model, sample.files);
  std::vector<DigestShare> shares;
  sums.add(sample.part(SlotId{2}, 0, 6, 0, 10), sample.staging(), shares);
  sums.add(sample.part(SlotId::weight, 0, 6, 0, 10), sample.staging(), shares);
  EXPECT_TRUE(shares.empty());
}

TEST(StateSums, AMomentThatNoneCanBeIsNamed) {
  for (float const wrong :
       {-1e-30F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Sample sample;
    sample.values[27] = wrong;
    StateSums const sums(sample.plan, sample.model, sample.files);
    std::vector<DigestShare> shares;
    EXPECT_NO_THROW(sums.add(sample.part(SlotId{2}, 0, 2, 0, 10), sample.staging(), shares));
    try {
      sums.add(sample.part(SlotId{2}, 1, 5, 5, 4), sample.staging(), shares);
      ADD_FAILURE() << wrong;
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::source);
      EXPECT_NE(error.sentence().find("file.bin: 'w (exp_avg_sq)'"), std::string::npos)
          << error.sentence();
      EXPECT_NE(error.sentence().find("at [2, 7]"), std::string::npos) << error.sentence();
    }
  }
}

}  // namespace
}  // namespace reshard
