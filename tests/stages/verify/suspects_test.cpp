#include <bit>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "core/base/hash/crc64.hpp"
#include "stages/verify/surveys/suspect_rules.hpp"
#include "stages/verify/surveys/value_survey.hpp"

namespace reshard {
namespace {

template <class Number>
std::vector<std::byte> bytes_of(std::vector<Number> const& numbers) {
  std::vector<std::byte> bytes(numbers.size() * sizeof(Number));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

TEST(Suspects, ValuesAreCountedByKind) {
  float const inf = std::numeric_limits<float>::infinity();
  float const nan = std::numeric_limits<float>::quiet_NaN();
  auto const found = values_of(
      DType::f32, bytes_of<float>({0, -0.0F, 1, inf, -inf, nan, 1e-40F, -1e-40F, 1e-40F}));
  EXPECT_EQ(found.elements, 9U);
  EXPECT_EQ(found.zero, 2U);
  EXPECT_EQ(found.infinite, 2U);
  EXPECT_EQ(found.nan, 1U);
  EXPECT_EQ(found.subnormal, 3U);
  EXPECT_FALSE(found.uniform);
  auto const halves =  // bf16: 0, NaN, infinity, a subnormal number, 1
      values_of(DType::bf16, bytes_of<std::uint16_t>({0, 0x7fc0, 0xff80, 0x0001, 0x3f80}));
  EXPECT_EQ(halves.nan + halves.infinite + halves.zero + halves.subnormal, 4U);
  auto const eights =  // e4m3: 0, -0, NaN, 448
      values_of(DType::f8_e4m3, bytes_of<std::uint8_t>({0, 0x80, 0x7f, 0x7e}));
  EXPECT_EQ(eights.zero, 2U);
  EXPECT_EQ(eights.nan, 1U);
  EXPECT_EQ(eights.infinite, 0U);
  auto const integers = values_of(DType::i32, bytes_of<std::int32_t>({7, 7, 7}));
  EXPECT_TRUE(integers.uniform);
  EXPECT_EQ(integers.zero, 0U);
  EXPECT_EQ(found.negative, 2U);   // no zero, no NaN
  EXPECT_EQ(halves.negative, 1U);  // minus infinity
  EXPECT_EQ(values_of(DType::i64, bytes_of<std::int64_t>({7, 0})).zero, 1U);
}

/// However the bytes arrive, slices have their own counts and CRCs.
TEST(Suspects, SlicesAreCollectedFromStretches) {
  std::vector<float> numbers;
  for (int i = 0; i < 600; ++i) numbers.push_back(i % 200 < 3 ? 0.0F : static_cast<float>(i % 200));
  auto const bytes = bytes_of(numbers);
  Comm const comm = Comm::world();
  for (std::size_t const step : {4U, 36U, 800U, 2400U}) {
    ValueSurvey survey({{DType::f32, 800, 3}}, 3);
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      ValueSurvey::Stretch const one{
          0, at, std::span(bytes).subspan(at, std::min(step, bytes.size() - at))};
      if (comm.rank() == static_cast<int>(at / step) % comm.size()) survey.take(std::span(&one, 1));
    }
    auto const slices = survey.merged(comm);
    ASSERT_EQ(slices.size(), 3U);
    for (SliceValues const& slice : slices) {
      EXPECT_EQ(slice.elements, 200U);
      EXPECT_EQ(slice.zero, 3U);
      EXPECT_EQ(slice.uniform, 0U);
      EXPECT_EQ(slice.crc64, crc64(std::span(bytes).first(800)));
    }
  }
}

SliceValues sound(std::uint64_t number) {
  return {.slice = number, .elements = 256, .uniform = 0, .crc64 = 1000 + number};
}

SuspectTensor tensor_of(std::string name, std::uint64_t first, std::size_t slices, bool matrix) {
  SuspectTensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = DType::bf16;
  tensor.matrix = matrix;
  tensor.first_slice = first;
  for (std::size_t s = 0; s < slices; ++s) tensor.slices.push_back(fmt::format("layer.{}.", s));
  return tensor;
}

/// Two tensors of eight layers: a matrix and a vector.
struct Planted {
  std::vector<SuspectTensor> tensors{tensor_of("m", 0, 8, true), tensor_of("v", 8, 8, false)};
  std::vector<SliceValues> slices;
  Planted() {
    for (std::uint64_t s = 0; s < 16; ++s) slices.push_back(sound(s));
  }
  std::string found() const {
    std::string text;
    for (Suspect const& one : suspects_in(tensors, slices))
      text += fmt::format("{}: {}: {} ({})\n", word_of(one.kind), one.tensor, one.found, one.count);
    return text;
  }
};

TEST(Suspects, ASoundModelHasNone) {
  Planted planted;
  for (std::uint64_t s = 8; s < 16; ++s) planted.slices[s].uniform = 1;  // norms of ones
  EXPECT_EQ(planted.found(), "");
  for (std::uint64_t s = 8; s < 16; ++s) planted.slices[s].zero = 256;  // biases of zeros
  EXPECT_EQ(planted.found(), "");
}

TEST(Suspects, EachKindIsNamedWithItsPlace) {
  Planted planted;
  planted.slices[1].nan = 2;
  planted.slices[9].infinite = 1;
  planted.slices[2].zero = 256;
  planted.slices[3].uniform = 1;
  planted.slices[4].subnormal = 200;
  planted.slices[6].crc64 = planted.slices[7].crc64 = planted.slices[5].crc64;
  planted.slices[12].zero = 256;
  planted.slices[13].uniform = 1;
  EXPECT_EQ(planted.found(),
            "not finite: layer.1.m: 2 NaN and 0 infinite of 256 (2)\n"
            "not finite: layer.1.v: 0 NaN and 1 infinite of 256 (1)\n"
            "zero: layer.2.m: all 256 are zero (256)\n"
            "zero: layer.4.v: all zero, and most other layers are not (256)\n"
            "constant: layer.3.m: all 256 have the same value (256)\n"
            "constant: layer.5.v: all the same, and most other layers are not (256)\n"
            "subnormal: layer.4.m: 200 of 256 are subnormal (200)\n"
            "equal: layer.5.m: the same bytes as layer.6.m; layer.7.m (3)\n");
}

TEST(Suspects, WhatIsExpectedOfATensorIsNone) {
  Planted planted;
  for (std::uint64_t s = 0; s < 8; ++s) planted.slices[s].zero = 256;
  planted.tensors[0].state = true;
  EXPECT_EQ(planted.found(), "");
  planted.tensors[0].state = false;
  planted.tensors[0].adapter = true;
  EXPECT_EQ(planted.found(), "");
  planted.tensors[0].adapter = false;
  planted.tensors[0].scale = true;
  planted.tensors[0].dtype = DType::u8;
  EXPECT_EQ(planted.found(), "");
  planted.tensors[0].dtype = DType::f32;
  EXPECT_NE(planted.found().find("zero scale: layer.7.m: 256 of 256 are zero"), std::string::npos);

  Planted moments;
  moments.slices[1].negative = 3;
  EXPECT_EQ(moments.found(), "");
  moments.tensors[0].state = moments.tensors[0].second_moment = true;
  EXPECT_EQ(moments.found(), "negative: layer.1.m: 3 of 256 second moments are negative (3)\n");

  Planted tied;
  tied.tensors[0].tied = tied.tensors[1].tied = tied.tensors[1].matrix = true;
  tied.slices[8].crc64 = tied.slices[0].crc64;
  EXPECT_EQ(tied.found(), "");
  tied.tensors[1].tied = false;
  EXPECT_EQ(tied.found(), "equal: layer.0.m: the same bytes as layer.0.v (2)\n");

  tied.tensors[0].repeated = tied.tensors[1].repeated = "embed";
  EXPECT_EQ(tied.found(), "");
  tied.slices[8].crc64 = 1008;
  tied.slices[9].crc64 = tied.slices[0].crc64;  // of another layer
  EXPECT_EQ(tied.found(), "equal: layer.0.m: the same bytes as layer.1.v (2)\n");
}

TEST(Suspects, ScalesOfFusedWeightsAreEqual) {
  Planted planted;
  for (SuspectTensor& tensor : planted.tensors) {
    tensor.dtype = DType::f32;
    tensor.fused = "gate and up";
    tensor.scale = true;
  }
  for (std::uint64_t s = 0; s < 16; ++s) {
    planted.slices[s].crc64 = 5;
    planted.slices[s].first = 0x3f000000;  // 0.5
  }
  EXPECT_EQ(planted.found(), "");
  planted.slices[11].crc64 = 6;
  planted.slices[11].first = 0x3e800000;
  EXPECT_EQ(planted.found(),
            "scales of fused weights differ: layer.3.v: 0.25, and layer.3.m has 0.5 (256)\n");
}

TEST(Suspects, ScalesOfSomeExpertsLack) {
  std::vector<std::string> names;
  for (char const* expert : {"0", "1", "2"})
    for (char const* word : {"weight", "weight_scale", "input_scale"})
      names.push_back(fmt::format("model.layers.1.mlp.experts.{}.up_proj.{}", expert, word));
  names.emplace_back("model.layers.0.mlp.experts.0.up_proj.weight_scale");  // none of the layer
  EXPECT_TRUE(lacking_scales(names).empty());
  std::erase(names, "model.layers.1.mlp.experts.2.up_proj.input_scale");
  std::vector<Suspect> const found = lacking_scales(names);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().tensor, "model.layers.1.mlp.experts.2.up_proj.input_scale");
  EXPECT_EQ(found.front().found,
            "is not there, and 2 of model.layers.1.mlp.experts.*.up_proj.input_scale have one");
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
