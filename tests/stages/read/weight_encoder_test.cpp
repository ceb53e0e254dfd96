#include "stages/read/weight_encoder.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

namespace reshard {
namespace {

/// A "file" in memory, whose reads are counted.
struct Source {
  std::vector<std::byte> bytes;
  std::size_t calls = 0;
  std::size_t read = 0;

  Gatherer::ReadParts reader() {
    return [this](std::uint32_t file, std::uint64_t offset, std::span<iovec const> parts) {
      EXPECT_EQ(file, 0U);
      ++calls;
      for (iovec const& part : parts) {
        ASSERT_LE(offset + part.iov_len, bytes.size());
        std::memcpy(part.iov_base, bytes.data() + offset, part.iov_len);
        offset += part.iov_len;
        read += part.iov_len;
      }
    };
  }
};

/// F32 values 0, 1, 2, … in a file.
Source counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  Source source;
  source.bytes.resize(count * sizeof(float));
  std::memcpy(source.bytes.data(), values.data(), source.bytes.size());
  return source;
}

/// Rows of [6, 4]: even ones lie in one half of the file, odd ones in the other, and the two halves
/// of a row are 100 elements apart.
GatheredTensor interleaved() {
  GatheredTensor tensor{DType::f32, {6, 4}, {}, {0}};
  for (Index odd = 0; odd < 2; ++odd)
    for (Index half = 0; half < 2; ++half)
      tensor.parts.push_back({0,
                              static_cast<std::uint64_t>(4 * (odd * 20 + half * 100)),
                              odd * 4 + half * 2,
                              {{3, 2, 8}, {2, 1, 1}}});
  return tensor;
}

std::vector<float> expected_of(GatheredTensor const& tensor) {
  std::vector<float> values(24, -1);
  for (GatheredPart const& part : tensor.parts)
    for (Index i = 0; i < part.dims[0].count; ++i)
      for (Index j = 0; j < part.dims[1].count; ++j)
        values[static_cast<std::size_t>(part.first + i * part.dims[0].dst_stride +
                                        j * part.dims[1].dst_stride)] =
            static_cast<float>(part.offset_bytes / 4) +
            static_cast<float>(i * part.dims[0].src_stride + j * part.dims[1].src_stride);
  return values;
}

void expect_every_stretch(GatheredTensor const& tensor) {
  Source source = counting(200);
  Gatherer gatherer(source.reader());
  std::vector<float> const expected = expected_of(tensor);
  for (Index first = 0; first < 24; ++first)
    for (Index count = 0; first + count <= 24; ++count) {
      std::vector<float> found(static_cast<std::size_t>(count));
      gatherer.gather(tensor, first, count, reinterpret_cast<std::byte*>(found.data()));
      for (Index i = 0; i < count; ++i)
        ASSERT_EQ(found[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(first + i)])
            << first << " + " << i << " of " << count;
    }
}

TEST(GathererTest, EveryStretchHasItsElements) { expect_every_stretch(interleaved()); }

TEST(GathererTest, ATransposedPartIsReadInOneRequest) {
  GatheredTensor tensor{DType::f32, {6, 4}, {{0, 40, 0, {{6, 1, 4}, {4, 6, 1}}}}, {0}};
  expect_every_stretch(tensor);
  Source source = counting(200);
  Gatherer gatherer(source.reader());
  std::vector<float> found(24);
  gatherer.gather(tensor, 0, 24, reinterpret_cast<std::byte*>(found.data()));
  EXPECT_EQ(source.calls, 1U);
}

SourceView view_of(std::shared_ptr<GatheredTensor const> weight, ViewKind kind) {
  SourceView view;
  view.kind = kind;
  view.gathered = std::move(weight);
  view.encoding = {quant::CodeKind::e4m3, quant::ScaleRule::quotient, 2, 2, DType::f32};
  view.dtype = kind == ViewKind::encode ? DType::f8_e4m3 : DType::f32;
  view.shape = kind == ViewKind::encode ? std::vector<Index>{6, 4} : std::vector<Index>{3, 2};
  return view;
}

TEST(WeightEncoderTest, EveryStretchOfCodesAndScalesIsTheSame) {
  auto const weight = std::make_shared<GatheredTensor>(interleaved());
  std::vector<float> const values = expected_of(*weight);
  std::vector<std::byte> codes(24);
  std::vector<std::byte> scales(24);
  SourceView const coded = view_of(weight, ViewKind::encode);
  SourceView const scaled = view_of(weight, ViewKind::scales);
  ASSERT_FALSE(quant::Encoder(coded.encoding, DType::f32, 4)
                   .run(6, std::as_bytes(std::span(values)), codes, scales));
  Source source = counting(200);
  Gatherer gatherer(source.reader());
  for (Index first = 0; first < 24; ++first)
    for (Index count = 0; first + count <= 24; ++count) {
      KeptScales kept;
      WeightEncoder encoder(gatherer, kept);
      std::vector<std::byte> found(static_cast<std::size_t>(count));
      ASSERT_FALSE(encoder.codes(coded, first, count, found.data()));
      ASSERT_TRUE(std::equal(found.begin(), found.end(), codes.begin() + first)) << first;
      if (first + count > 6) continue;
      found.resize(static_cast<std::size_t>(count) * 4);
      ASSERT_FALSE(encoder.scales(scaled, first, count, found.data()));
      ASSERT_TRUE(std::equal(found.begin(), found.end(), scales.begin() + 4 * first)) << first;
    }
}

// Scales behind the codes of their weight read nothing.
TEST(WeightEncoderTest, AWeightIsReadOnce) {
  auto const weight = std::make_shared<GatheredTensor>(interleaved());
  Source source = counting(200);
  Gatherer gatherer(source.reader());
  KeptScales kept;
  WeightEncoder encoder(gatherer, kept);
  std::vector<std::byte> bytes(24);
  ASSERT_FALSE(encoder.codes(view_of(weight, ViewKind::encode), 0, 24, bytes.data()));
  EXPECT_EQ(source.read, 96U);
  ASSERT_FALSE(encoder.scales(view_of(weight, ViewKind::scales), 0, 6, bytes.data()));
  EXPECT_EQ(source.read, 96U);
}

TEST(WeightEncoderTest, ASpecialElementIsCountedInTheWeight) {
  auto const weight = std::make_shared<GatheredTensor>(interleaved());
  Source source = counting(200);
  float const infinite = std::numeric_limits<float>::infinity();
  std::memcpy(source.bytes.data() + 4 * 104, &infinite, 4);  // row 4, column 2
  Gatherer gatherer(source.reader());
  KeptScales kept;
  WeightEncoder encoder(gatherer, kept);
  std::vector<std::byte> bytes(24);
  auto const special = encoder.codes(view_of(weight, ViewKind::encode), 20, 4, bytes.data());
  ASSERT_TRUE(special);
  EXPECT_EQ(special->element, 18U);
}

}  // namespace
}  // namespace reshard
