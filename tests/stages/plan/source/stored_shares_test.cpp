#include "stages/plan/source/catalog/stored_shares.hpp"

#include "stages/plan/source/catalog/restride.hpp"
#include "tests/stages/plan/planning.hpp"

namespace reshard::test {
namespace {

/// Two stages of two chunks each, one tensor in each chunk.
MadeCheckpoint of_chunks() {
  MadeCheckpoint made(FormatId::megatron);
  made.value.shares.mesh = MeshSizes{.pp = 2, .vpp = 2};
  made.value.shares.chunks_per_file = 2;
  for (int const pp : {0, 1}) {
    made.begin_file();
    for (int const chunk : {0, 1}) {
      SharePlace place;
      place.file = static_cast<std::uint32_t>(pp);
      place.at = made.value.shares.mesh.at({{"pp", pp}});
      place.chunk = static_cast<std::size_t>(chunk * 2 + pp);
      place.chunk_in_file = chunk;
      place.first_tensor = made.value.stored.tensors.size();
      place.tensor_count = 1;
      made.value.stored.add_whole("w", DType::bf16, {static_cast<Index>(10 * pp + chunk)},
                                  {place.file, 0, 2});
      made.value.shares.places.push_back(place);
    }
  }
  return made;
}

TEST(StoredShares, AreNumberedInModelOrder) {
  MadeCheckpoint const source = of_chunks();
  PipelineSpec spec;
  spec.ranks = spec.chunks_per_rank = 2;
  spec.decoder_layers = 4;
  auto const chunks = pipeline_chunks(spec);
  StoredView const view = source.value.format->view(source.value, "");
  StoredShares const shares(source.value, view, chunks);
  ASSERT_EQ(shares.size(), 4U);
  std::vector<std::size_t> numbers;
  for (std::size_t s = 0; s < shares.size(); ++s) {
    StoredShare const share = shares[s];
    numbers.push_back(share.chunk);
    EXPECT_EQ(share.place.chunk, &chunks[share.chunk]);
    EXPECT_EQ(share.tensors.at("w"), s);
    EXPECT_EQ(share.where, fmt::format("/made/file{}", s / 2));
  }
  EXPECT_EQ(numbers, (std::vector<std::size_t>{0, 2, 1, 3}));
}

TEST(StoredShares, AFileOfAnotherRunIsRefused) {
  MadeCheckpoint source = of_chunks();
  source.value.shares.places.pop_back();
  StoredView const view;
  std::string const sentence =
      refused(ErrorKind::source, [&] { StoredShares(source.value, view, {}); });
  EXPECT_NE(sentence.find("/made/file1: holds 1 model chunk, the args give 2 per pipeline rank"),
            std::string::npos)
      << sentence;
}

TEST(StoredShares, ThoseOfEqualTablesAreOneInEachChunk) {
  MadeCheckpoint source(FormatId::megatron);
  source.value.shares.mesh = MeshSizes{.tp = 2, .pp = 2};
  for (int const pp : {0, 1})
    for (int const tp : {0, 1}) {
      SharePlace place;
      place.at = source.value.shares.mesh.at({{"tp", tp}, {"pp", pp}});
      place.chunk = static_cast<std::size_t>(pp);
      if (source.value.shares.places.size() > 0) place.alike = 0;
      source.add_share(place, {{"a", {2}}, {"b", {3}}});
    }
  source.add_share(source.value.shares.places.back(), {{"c", {2}}});
  source.value.shares.places.back().alike.reset();
  source.value.stored.add_whole("state", DType::f32, {4}, {0, 0, 16});
  PipelineSpec spec;
  spec.ranks = 2;
  spec.decoder_layers = 4;
  auto const chunks = pipeline_chunks(spec);
  StoredView const view;
  StoredShares const shares(source.value, view, chunks);
  std::vector<std::size_t> first;
  for (std::size_t s = 0; s < shares.size(); ++s) {
    first.push_back(shares.first_alike(s));
    StoredShare const share = shares.without_names(s);
    EXPECT_EQ(share.first_tensor, 2 * s);
    EXPECT_EQ(share.chunk, shares[s].chunk);
    EXPECT_EQ(share.where, shares[s].where);
    EXPECT_TRUE(share.tensors.empty());
  }
  EXPECT_EQ(first, (std::vector<std::size_t>{0, 0, 2, 2, 4}));

  auto const runs = [&](Checkpoint::Which which) {
    Lines text;
    for (TensorRun const& run : source.value.different_tensors(which))
      text.push_back(fmt::format("{}+{}", run.first, run.count));
    return text;
  };
  EXPECT_EQ(runs(Checkpoint::Which::first), (Lines{"0+2", "8+1", "9+1"}));
  EXPECT_EQ(runs(Checkpoint::Which::last), (Lines{"6+2", "8+1", "9+1"}));
}

TEST(StoredShares, OfAWholeSourceAreOne) {
  MadeCheckpoint const source = made_dcp({{"a", {2}}, {"b", {3}}});
  StoredView const view = view_of(source.value);
  StoredShares const shares(source.value, view, {});
  ASSERT_EQ(shares.size(), 1U);
  StoredShare const share = shares[0];
  EXPECT_EQ(share.where, "/made");
  EXPECT_EQ(share.place.chunk, nullptr);
  auto const find = finder_over(share.tensors, source.value.stored);
  ASSERT_TRUE(find("b"));
  EXPECT_EQ(find("b")->shape, std::vector<Index>{3});
  EXPECT_EQ(find("b")->dtype, DType::bf16);
  EXPECT_FALSE(find("c"));
}

TEST(SourceChunks, FollowArgsAndNameThem) {
  MadeCheckpoint source = of_chunks();
  source.value.run.args = Json().set("num_layers", 4);
  EXPECT_EQ(source_chunks(source.value, source.value.run.args, 4, 0).size(), 4U);
  std::string const sentence =
      refused(ErrorKind::source, [&] { source_chunks(source.value, source.value.run.args, 5, 0); });
  EXPECT_TRUE(sentence.starts_with("/made, args")) << sentence;
}

TEST(Restride, MovesDigitsCopiesAndTheOffset) {
  // Rows 1 and 2 of a 3 x 4 tensor that its file holds transposed: strides 1 and 3.
  Piece piece{{}, {{0, 3, 1, 1, 2, 4}, {1, 4, 1, 0, 4, 1}}, {}, 4};
  std::vector<Piece> pieces{piece};
  restride(pieces, {3, 4}, {1, 3});
  EXPECT_EQ(pieces.front().digits[0].stride, 1);
  EXPECT_EQ(pieces.front().digits[1].stride, 3);
  EXPECT_EQ(pieces.front().offset, 1);
  // A repeat along the columns moves with them; a digit of one value needs no stride.
  Piece repeated{{}, {{0, 3, 1, 0, 1, 99}}, {{4, 1}}, 6};
  pieces = {repeated};
  restride(pieces, {3, 4}, {1, 3});
  EXPECT_EQ(pieces.front().digits[0].stride, 99);
  EXPECT_EQ(pieces.front().copies.front().stride, 3);
  EXPECT_EQ(pieces.front().offset, 1 * 1 + 2 * 3);
}

}  // namespace
}  // namespace reshard::test
