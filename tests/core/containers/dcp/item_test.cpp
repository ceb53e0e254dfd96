// Items that the program writes.

#include "core/containers/dcp/item.hpp"

#include <gtest/gtest.h>

#include "core/containers/dcp/item_head.hpp"
#include "core/containers/dcp/metadata/tensor_pickle.hpp"
#include "core/containers/torch/torch_types.hpp"
#include "tests/core/containers/dcp/item_files.hpp"

namespace reshard::dcp {
namespace {

using namespace std::string_literals;

std::vector<DType> torch_dtypes() {
  std::vector<DType> dtypes;
  for (int i = 0; i <= static_cast<int>(last_dtype); ++i)
    if (pickle::torch_type(static_cast<DType>(i)) != nullptr)
      dtypes.push_back(static_cast<DType>(i));
  return dtypes;
}

std::vector<std::vector<Index>> const shapes = {
    {},        {0},       {7},       {2, 3}, {70000, 2}, {3, 1, 5, 2}, {1, 2, 3, 1, 2, 2},
    {4, 0, 9}, {1, 1, 1}, {300, 301}};

TEST(TensorPickle, HasNoMemo) {
  std::string const expected =
      "\x80\2ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nBFloat16Storage\nX\1\0\0\0"
      "0X\3\0\0\0cpuK\6tQK\0K\2K\3\x86K\3K\1\x86\x89"
      "ccollections\nOrderedDict\n)RtR."s;
  EXPECT_EQ(tensor_pickle(DType::bf16, std::vector<Index>{2, 3}), expected);
}

TEST(TensorPickle, IsUnderstoodAsTheGeneralParserUnderstandsIt) {
  for (DType const dtype : torch_dtypes())
    for (std::vector<Index> const& shape : shapes) {
      std::string const bytes = tensor_pickle(dtype, shape);
      pickle::Document const document = parse(bytes);
      ASSERT_EQ(document.at(document.root).kind, pickle::Kind::tensor) << name(dtype);
      pickle::TensorRef const& general = document.tensors[0];
      EXPECT_EQ(general.dtype, dtype);
      EXPECT_EQ(general.shape, shape);
      auto const matched = match_tensor_pickle(bytes + "more");
      ASSERT_TRUE(matched) << name(dtype);
      EXPECT_EQ(matched->size_bytes, bytes.size());
      EXPECT_EQ(matched->tensor.dtype, dtype);
      EXPECT_EQ(matched->tensor.shape, general.shape);
      EXPECT_EQ(matched->tensor.strides, general.strides);
      EXPECT_EQ(matched->tensor.storage.count, general.storage.count);
      EXPECT_EQ(matched->tensor.storage.dtype, general.storage.dtype);
      EXPECT_EQ(matched->tensor.storage.untyped, general.storage.untyped);
    }
}

TEST(TensorPickle, TypesThatTorchLacksAreRefused) {
  EXPECT_THROW(tensor_pickle(DType::f6_e2m3, std::vector<Index>{4}), Error);
  EXPECT_THROW(item_frame(DType::f4, std::vector<Index>{4}, 0), Error);
}

TEST(ItemFrame, IsTheGoldenItem) {
  std::string const item = whole_item(DType::bf16, {2, 3}, "\0\0\1\0\2\0\3\0\4\0\5\0"s);
  EXPECT_EQ(item.size(), 1577U);
  // Compared with SHA-256 c18f78b1…bee8 by tests/peers/test_dcp_items.py.
  EXPECT_EQ(crc_of(item), 0x42106aa3U);
}

TEST(ItemFrame, HasTheSizesOfItsLayout) {
  for (DType const dtype : torch_dtypes())
    for (std::vector<Index> const& shape : shapes) {
      ItemLayout const layout = item_layout(dtype, shape);
      ItemFrame const frame = item_frame(dtype, shape, 1);
      EXPECT_EQ(frame.head.size(), layout.payload_offset_bytes);
      EXPECT_EQ(layout.payload_offset_bytes % 64, 0U);
      EXPECT_EQ(frame.head.size() + layout.payload_bytes + frame.tail.size(), layout.size_bytes);
    }
}

TEST(ItemFrame, IsTheFileThatTheGeneralWriterWouldMake) {
  // Sizes on either side of the places where 64-bit fields begin, without their bytes.
  constexpr Index border = 0xffffffff;
  for (Index const size : {Index{0}, Index{1}, Index{1000}, border - 721, border - 720,
                           border - 719, border - 1, border, border + 1, border << 8}) {
    std::vector<Index> const shape = {size};
    pickle::Document document;
    document.root = document.add_tensor(DType::u8, shape);
    TorchFilePlan const plan = plan_torch_file(document, "archive");
    std::vector<FileSegment> const segments =
        render_torch_file(plan, std::vector<std::uint32_t>{5});
    ItemFrame const frame = item_frame(DType::u8, shape, 5);
    // The general writer's pickle has a memo, which takes bytes and moves what follows by a
    // multiple of 64.
    std::uint64_t const moved =
        plan.storages[0].payload_offset_bytes - item_layout(DType::u8, shape).payload_offset_bytes;
    EXPECT_EQ(moved % 64, 0U);
    EXPECT_EQ(plan.size_bytes - moved, item_layout(DType::u8, shape).size_bytes) << size;
    if (size == 0) continue;  // has no descriptor
    EXPECT_EQ(segments.back().bytes.substr(0, 24), frame.tail.substr(0, 24)) << size;
  }
}

TEST(ItemFrame, WhatIsWrittenIsReadBackAtOnce) {
  for (DType const dtype : torch_dtypes())
    for (std::vector<Index> const& shape : shapes) {
      ItemLayout const layout = item_layout(dtype, shape);
      std::string const item = whole_item(dtype, shape, std::string(layout.payload_bytes, 'p'));
      auto const head = read_item_head(
          std::as_bytes(std::span(item).first(std::min<std::size_t>(item.size(), 4096))),
          item.size());
      ASSERT_TRUE(head) << name(dtype);
      EXPECT_EQ(head->payload_offset_bytes, layout.payload_offset_bytes);
      EXPECT_EQ(head->storage_bytes, layout.payload_bytes);
      ItemFile const file(item);
      ItemTensor const tensor = file.read(dtype, shape);
      EXPECT_EQ(tensor.payload_offset_bytes, 1003 + layout.payload_offset_bytes);
      EXPECT_TRUE(tensor.strides.empty());
      EXPECT_EQ(
          read_torch_file(FileRange(file.file, file.place.offset_bytes, file.place.size_bytes))
              .storages.at("0")
              .offset_bytes,
          tensor.payload_offset_bytes);
    }
}

}  // namespace
}  // namespace reshard::dcp
