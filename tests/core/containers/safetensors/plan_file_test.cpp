#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "tests/core/containers/safetensors/header_files.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::safetensors {
namespace {

using Metadata = std::vector<std::pair<std::string, std::string>>;
Metadata const pt = {{"format", "pt"}};

Header header_of(FilePlan const& plan) {
  return parse_header(std::as_bytes(std::span(plan.header)), plan.size_bytes, "planned");
}

TEST(SafetensorsPlanFile, LaysOutTheWorkedExample) {  // docs/formats/safetensors.md, 3
  std::vector<TensorSpec> const tensors = {{"scale", DType::u8, {3}},
                                           {"b", DType::bf16, {2, 3}},
                                           {"w", DType::f32, {}},
                                           {"a", DType::bf16, {1}}};
  FilePlan const plan = plan_file(tensors, pt);
  std::string const json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]},)"
      R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[6,18]},"scale":{"dtype":"U8","shape":[3],"data_offsets":[18,21]}})";
  EXPECT_EQ(plan.header.substr(8, json.size()), json);
  std::uint64_t const start = (8 + json.size() + 7) / 8 * 8;
  EXPECT_EQ(plan.header.size(), start);
  EXPECT_EQ(plan.header.find_first_not_of(' ', 8 + json.size()), std::string::npos);
  EXPECT_EQ(plan.offset_bytes,
            (std::vector<std::uint64_t>{start + 18, start + 6, start, start + 4}));
  EXPECT_EQ(plan.size_bytes, start + 21);
}

TEST(SafetensorsPlanFile, AFileWithoutTensorsIsAHeader) {
  FilePlan const plan = plan_file({}, {});
  EXPECT_EQ(plan.size_bytes, 16U);
  EXPECT_EQ(plan.header.substr(8), "{}      ");
  EXPECT_TRUE(header_of(plan).tensors.empty());
}

std::vector<TensorSpec> random_tensors(std::mt19937& random) {
  auto const below = [&](int limit) {
    return std::uniform_int_distribution<int>(0, limit - 1)(random);
  };
  std::vector<TensorSpec> tensors;
  int const count = below(40);
  for (int i = 0; i < count; ++i) {
    TensorSpec tensor{fmt::format("t\n\"é{}", i * 7919 % 41),
                      static_cast<DType>(below(static_cast<int>(DType::c128))),
                      {}};
    std::vector<Index> shape;
    for (int d = below(4); d > 0; --d) shape.push_back(below(6));
    if (bits(tensor.dtype) < 8) shape.push_back(4);
    tensor.shape = shape;
    if (tensor.dtype == DType::f4) tensor.dtype = DType::f4_x2;  // as it is read
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

TEST(SafetensorsPlanFile, TheReaderFindsWhatThePlanSaysNaturallyAligned) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    auto const tensors = random_tensors(random);
    FilePlan const plan = plan_file(tensors, pt);
    Header const header = header_of(plan);
    EXPECT_EQ(header.header_bytes % 8, 0U);
    EXPECT_EQ(header.metadata, pt);
    ASSERT_EQ(header.tensors.size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto const found = std::ranges::find_if(
          header.tensors, [&](FileTensor const& one) { return one.name == tensors[i].name; });
      ASSERT_NE(found, header.tensors.end());
      EXPECT_EQ(found->dtype, tensors[i].dtype);
      EXPECT_EQ(found->shape, tensors[i].shape);
      EXPECT_EQ(found->offset_bytes, plan.offset_bytes[i]);
      EXPECT_EQ(found->size_bytes, tensor_bytes(tensors[i]));
      int const element_bytes = std::min(8, std::max(1, bits(tensors[i].dtype) / 8));
      EXPECT_EQ(found->offset_bytes % static_cast<std::uint64_t>(element_bytes), 0U);
    }
  }
}

TEST(SafetensorsPlanFile, ForClonesTensorsOfWholeBlocksComeFirst) {
  std::vector<TensorSpec> const tensors = {{"a", DType::f32, {3}},
                                           {"b", DType::bf16, {64, 64}},
                                           {"c", DType::f32, {2048}},
                                           {"d", DType::u8, {5}},
                                           {"e", DType::f32, {0}}};
  FilePlan const plan = plan_file(tensors, pt, DataLayout::for_clones);
  Header const header = header_of(plan);
  ASSERT_EQ(header.tensors.size(), tensors.size());
  std::vector<std::uint64_t> const behind = {16384, 8192, 0, 16396, 8192};
  for (std::size_t i = 0; i < tensors.size(); ++i)
    EXPECT_EQ(plan.offset_bytes[i], 4096 + behind[i]) << tensors[i].name.text();
  FilePlan const usual = plan_file(tensors, pt);
  EXPECT_EQ(plan.size_bytes - plan.header.size(), usual.size_bytes - usual.header.size());
}

std::string spelled(std::string json, std::size_t header_bytes) {
  std::uint64_t const length = header_bytes - 8;
  std::string header(reinterpret_cast<char const*>(&length), 8);
  return header + json + std::string(length - json.size(), ' ');
}

TEST(SafetensorsPlanFile, AHeaderOfTheSameTensorsIsRepeatedAsItIsSpelled) {
  std::string const header = spelled(
      R"({"b": {"shape": [2], "dtype": "BF16", "data_offsets": [8, 12]}, "__metadata__": {"by": "x"}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})",
      512);
  auto const like = [&](std::vector<TensorSpec> const& tensors) {
    return plan_file_like(std::as_bytes(std::span(header)), 512 + 12, tensors);
  };
  auto const same = like({{"b", DType::bf16, {2}}, {"a", DType::f32, {2}}});
  ASSERT_TRUE(same);
  EXPECT_EQ(same->header, header);
  EXPECT_EQ(same->offset_bytes, (std::vector<std::uint64_t>{512 + 8, 512}));
  EXPECT_EQ(same->size_bytes, 512U + 12);
  EXPECT_FALSE(like({{"a", DType::f32, {2}}}));
  EXPECT_FALSE(like({{"b", DType::f16, {2}}, {"a", DType::f32, {2}}}));
  EXPECT_FALSE(like({{"b", DType::bf16, {1, 2}}, {"a", DType::f32, {2}}}));
  EXPECT_FALSE(like({{"b", DType::bf16, {2}}, {"b", DType::bf16, {2}}}));
  EXPECT_THROW(plan_file_like(std::as_bytes(std::span(header)), 512 + 11, {}), Error);
}

TEST(SafetensorsPlanFile, TheFileDoesNotDependOnTheOrderOfTheTensors) {
  std::mt19937 random(12);
  auto tensors = random_tensors(random);
  std::string const header = plan_file(tensors, pt).header;
  for (int round = 0; round < 20; ++round) {
    std::ranges::shuffle(tensors, random);
    EXPECT_EQ(plan_file(tensors, pt).header, header);
  }
}

TEST(SafetensorsPlanFile, APlannedFileOnDiskGivesBackItsBytes) {
  ScratchFolder const scratch("safetensors_plan");
  std::vector<TensorSpec> const tensors = {
      {"b", DType::u8, {251}}, {"a", DType::i32, {61}}, {"empty", DType::f32, {0, 4}}};
  FilePlan const plan = plan_file(tensors, pt);
  std::vector<std::vector<std::byte>> payloads;
  auto const path = scratch.path() / "x.safetensors";
  {
    File const file = File::create(path);
    file.write_at(0, std::as_bytes(std::span(plan.header)));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto& payload = payloads.emplace_back(tensor_bytes(tensors[i]));
      for (std::size_t k = 0; k < payload.size(); ++k)
        payload[k] = static_cast<std::byte>((k * (i + 3)) % 251);
      file.write_at(plan.offset_bytes[i], payload);
    }
  }
  File const file = File::open_for_reading(path);
  EXPECT_EQ(file.size_bytes(), plan.size_bytes);
  for (FileTensor const& tensor : read_header(file).tensors) {
    std::vector<std::byte> bytes(tensor.size_bytes);
    file.read_at(tensor.offset_bytes, bytes);
    auto const i = std::ranges::find(tensors, tensor.name, &TensorSpec::name) - tensors.begin();
    EXPECT_EQ(bytes, payloads[static_cast<std::size_t>(i)]) << tensor.name.text();
  }
}

struct Refused {
  std::vector<TensorSpec> tensors;
  Metadata metadata;
  std::string says;
};

TEST(SafetensorsPlanFile, RefusesWhatTheFormatCannotHold) {
  std::vector<Refused> const cases = {
      {.tensors = {{"a", DType::u8, {1}}, {"a", DType::u8, {2}}},
       .metadata = {},
       .says = "tensor 'a': two tensors of one file have this name"},
      {.tensors = {{"__metadata__", DType::u8, {1}}}, .metadata = {}, .says = "reserved"},
      {.tensors = {{"a\xff", DType::u8, {1}}}, .metadata = {}, .says = "not UTF-8"},
      {.tensors = {{std::string(70'000, 'a'), DType::u8, {1}}},
       .metadata = {},
       .says = "70000 bytes, more than 65536"},
      {.tensors = {{"a", DType::c128, {1}}}, .metadata = {}, .says = "C128"},
      {.tensors = {{"a", DType::f4, {3}}}, .metadata = {}, .says = "shape [3] of F4"},
      {.tensors = {{"a", DType::f4_x2, {}}}, .metadata = {}, .says = "no last dimension"},
      {.tensors = {{"a", DType::f4_x2, {0, Index{1} << 62}}},
       .metadata = {},
       .says = "shape [0, 4611686018427387904] of F4_X2 has no last dimension"},
      {.tensors = {{"a", DType::u8, {-1}}}, .metadata = {}, .says = "the shape is [-1]"},
      {.tensors = {{"a", DType::u8, std::vector<Index>(65, 1)}},
       .metadata = {},
       .says = "65 dimensions, more than 64"},
      {.tensors = {{"a", DType::f64, {Index{1} << 61}}}, .metadata = {}, .says = "below 2^61"},
      {.tensors = {}, .metadata = {{"k", "1"}, {"k", "2"}}, .says = "the entry 'k'"},
      {.tensors = {}, .metadata = {{"k", "\xff"}}, .says = "not UTF-8"},
      {.tensors = {},
       .metadata = {{"k", std::string(25'000'000, 'x')}},
       .says = "smaller shard size"},
  };
  for (Refused const& each : cases) {
    try {
      plan_file(each.tensors, each.metadata);
      ADD_FAILURE() << "accepted: " << each.says;
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(error.sentence().find(each.says), std::string::npos) << error.sentence();
    }
  }
}

TEST(SafetensorsPlanFile, TheLargestHeaderWrittenIsReadByTheHub) {
  std::string value(largest_written_header_bytes - 4096, 'x');
  FilePlan const plan = plan_file({}, Metadata{{"k", value}});
  EXPECT_LE(plan.header.size() - 8, largest_written_header_bytes);
  EXPECT_EQ(header_of(plan).metadata.front().second.size(), value.size());
}

}  // namespace
}  // namespace reshard::safetensors
