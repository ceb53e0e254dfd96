#include "core/formats/dcp/unflatten.hpp"

#include <cstring>

#include <gtest/gtest.h>

#include "tests/support/made_checkpoint.hpp"
#include "tests/support/written_target.hpp"

namespace reshard::dcp {
namespace {

using Shape = std::vector<Index>;

/// A matrix of 4 x 6 in fragments of 2 x 2, each kept in two flat ranges: one element, then three.
/// Every element is its number in the matrix.
struct Flattened {
  Flattened() {
    made.begin_file();
    StoredTable& stored = made.value.stored;
    stored.tensors.push_back({"w", DType::bf16, {2, 3, 4}, 0, 0});
    for (Index i = 0; i < 2; ++i)
      for (Index j = 0; j < 3; ++j)
        for (auto const& [begin, end] : {std::pair<Index, Index>{0, 1}, {1, 4}})
          add(i, j, begin, end);
    stored.tensors.change(0, [&](StoredTensor& w) {
      w.chunk_count = static_cast<std::uint32_t>(stored.chunks.size());
    });
  }

  void add(Index i, Index j, Index begin, Index end) {
    StoredTable& stored = made.value.stored;
    stored.chunks.push_back({stored.lists.add(Shape{i, j, begin}),
                             stored.lists.add(Shape{1, 1, end - begin}), ItemPlace{}});
    stored.payload_offsets.push_back(bytes.size());
    for (Index k = begin; k < end; ++k) put((2 * i + k / 2) * 6 + 2 * j + k % 2);
  }
  void put(Index number) {
    bytes.push_back(static_cast<std::byte>(number));
    bytes.push_back(std::byte{0});
  }

  test::MadeCheckpoint made{FormatId::torch_dist};
  std::vector<std::byte> bytes;
};

std::string refusal(Flattened flattened, Shape const& whole) {
  try {
    unflatten(flattened.made.value, {{"w", whole}});
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    return error.sentence();
  }
  return "";
}

TEST(Unflatten, EveryElementStandsWhereTheModelHasIt) {
  Flattened flattened;
  Checkpoint& checkpoint = flattened.made.value;
  unflatten(checkpoint, {{"w", {4, 6}}});
  EXPECT_TRUE(checkpoint.chunked.flattened);
  EXPECT_EQ(checkpoint.stored.tensors.front().shape, (Shape{4, 6}));
  test::GatheredTensor const found = test::gathered(checkpoint.stored, 0, {flattened.bytes});
  EXPECT_TRUE(found.once);
  for (std::size_t i = 0; i < 24; ++i)
    EXPECT_EQ(found.bytes[2 * i], static_cast<std::byte>(i)) << "element " << i;
}

TEST(Unflatten, OtherTensorsStayAsTheyAre) {
  Flattened flattened;
  StoredTable& stored = flattened.made.value.stored;
  flattened.made.add_file({{"first", {3}}, {"turned", {2, 2}}});
  stored.strides[stored.chunks.size() - 1] = {1, 2};
  StoredTensor const w = stored.tensors[0];
  stored.tensors.set(0, stored.tensors[1]);
  stored.tensors.set(1, w);
  unflatten(flattened.made.value, {{"w", {4, 6}}});
  StoredTensor const& first = stored.tensors[0];
  EXPECT_EQ(first.name, "first");
  EXPECT_EQ(first.chunk_count, 1U);
  EXPECT_EQ(stored.chunks_of(first).front().item.file, 1U);
  EXPECT_EQ(stored.payload_offset_bytes(first.first_chunk), 0U);
  StoredTensor const& turned = stored.tensors[2];
  ASSERT_TRUE(stored.strides.contains(turned.first_chunk));
  EXPECT_EQ(stored.strides.at(turned.first_chunk), (Shape{1, 2}));
  EXPECT_EQ(stored.strides.size(), 1U);
}

TEST(Unflatten, NothingIsFlatWhereNothingIsSaid) {
  Flattened flattened;
  unflatten(flattened.made.value, {});
  EXPECT_FALSE(flattened.made.value.chunked.flattened);
  EXPECT_EQ(flattened.made.value.stored.tensors.front().shape, (Shape{2, 3, 4}));
}

TEST(Unflatten, ShapesThatFragmentsCannotHaveAreRefused) {
  for (Shape const& whole :
       std::vector<Shape>{{}, {24}, {4, 6, 1}, {5, 6}, {4, 9}, {0, 6}, {-4, 6}}) {
    std::string const said = refusal({}, whole);
    EXPECT_NE(said.find("'w' is stored as [2, 3, 4]"), std::string::npos) << said;
  }
  Flattened several;
  StoredTable& stored = several.made.value.stored;
  StoredChunk larger = stored.chunks[0];
  larger.sizes = stored.lists.add(Shape{2, 1, 1});
  stored.chunks.set(0, larger);
  EXPECT_NE(refusal(several, {4, 6}).find("covers 2 fragments, expected 1"), std::string::npos);
  Flattened turned;
  turned.made.value.stored.strides[0] = {1, 1, 1};
  EXPECT_NE(refusal(turned, {4, 6}), "");
}

}  // namespace
}  // namespace reshard::dcp
