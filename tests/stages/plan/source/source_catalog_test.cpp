#include "stages/plan/source/catalog/source_catalog.hpp"
#include "stages/plan/catalogue.hpp"

#include "tests/stages/plan/planning.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/written_target.hpp"

namespace reshard::test {
namespace {

/// A source, and the model that its family's map makes of it.
struct Read {
  explicit Read(MadeCheckpoint made)
      : source(std::move(made)),
        family(map_file("llama")),
        core(map_file("mcore")),
        model(family, core, {source.value.model.config, "config.json", 0}),
        side(model, family, {}) {
    apply_family(model, side);
  }

  SourceCatalog read() {
    return source_catalog(model, side, source.value, view_of(source.value), {},
                          {side, "llama.toml", false});
  }
  Catalog catalog() { return read().catalog; }

  MadeCheckpoint source;
  MapFile family, core;
  Model model;
  Side side;
};

MadeCheckpoint llama() { return made_huggingface(sample_model("llama")); }

TEST(SourceCatalog, HasABlobForEachTensorWhereItLies) {
  Read read(llama());
  Catalog const catalog = read.catalog();
  StoredTable const& stored = read.source.value.stored;
  ASSERT_EQ(catalog.blobs.size(), stored.tensors.size());
  for (Blob const& blob : catalog.blobs) {
    auto const tensor = std::ranges::find_if(
        stored.tensors, [&](StoredTensor const& one) { return one.name == blob.name; });
    ASSERT_NE(tensor, stored.tensors.end()) << blob.name.text();
    EXPECT_EQ(blob.offset_bytes, stored.payload_offset_bytes(tensor->first_chunk));
    EXPECT_EQ(blob.file, 0U);
  }
  EXPECT_EQ(catalog.files, Lines{"/made/file0"});
}

TEST(SourceCatalog, NamesWhatTheMapDrops) {
  MadeCheckpoint made = llama();
  std::size_t const weights = made.value.stored.tensors.size();
  made.add_file({{"model.layers.1.self_attn.rotary_emb.inv_freq", {4}, DType::f32},
                 {"model.layers.0.self_attn.rotary_emb.inv_freq", {4}, DType::f32}});
  made.add_file({{"rotary_emb.inv_freq", {6}, DType::bf16}});
  SourceCatalog const found = Read(std::move(made)).read();
  EXPECT_EQ(found.catalog.blobs.size(), weights);
  EXPECT_EQ(found.left_out.tensors, 3U);
  EXPECT_EQ(found.left_out.bytes, 16U + 16 + 12);
  EXPECT_EQ(found.left_out.names,
            (Lines{"model.layers.1.self_attn.rotary_emb.inv_freq",
                   "model.layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"}));
  EXPECT_EQ(Read(llama()).read().left_out.tensors, 0U);
}

TEST(SourceCatalog, HasABlobForEachChunk) {
  MadeCheckpoint const whole = llama();
  MadeCheckpoint cut(FormatId::dcp);
  cut.begin_file();
  for (StoredTensor const& tensor : whole.value.stored.tensors)
    cut.add_cut({tensor.name, tensor.shape},
                tensor.shape.size() == 2 ? std::vector<Index>{2, 1} : std::vector<Index>{1});
  cut.value.model.config = whole.value.model.config;
  Read read(std::move(cut));
  EXPECT_EQ(read.catalog().blobs.size(), read.source.value.stored.chunks.size());
}

TEST(SourceCatalog, FollowsStrides) {
  MadeCheckpoint source = llama();
  auto const& tensors = source.value.stored.tensors;
  StoredTensor const up = *std::ranges::find_if(tensors, [&](StoredTensor const& one) {
    return one.name == "model.layers.0.mlp.up_proj.weight";
  });
  source.value.stored.strides[up.first_chunk] = {1, up.shape[0]};
  Read read(std::move(source));
  Catalog const catalog = read.catalog();
  for (TensorPieces const& tensor : catalog.tensors)
    for (std::size_t p = 0; p < tensor.size(); ++p) {
      if (catalog.blobs[tensor.blob(p)].name != up.name) continue;
      std::vector<Index> strides;
      Piece const piece = tensor[p];
      for (PieceDigit const& digit : piece.digits)
        if (digit.count > 1) strides.push_back(digit.stride);
      std::ranges::sort(strides);
      EXPECT_EQ(strides, (std::vector<Index>{1, up.shape[0]}));
      return;
    }
  FAIL() << "no piece of the tensor";
}

Lines lines_of(Catalog const& catalog) {
  Lines lines;
  for (Blob const& blob : catalog.blobs)
    lines.push_back(
        fmt::format("{} {} {} {}", blob.name, blob.file, blob.offset_bytes, name(blob.dtype)));
  for (TensorPieces const& tensor : catalog.tensors)
    for (std::size_t p = 0; p < tensor.size(); ++p)
      lines.push_back(fmt::format("{} {} {} {} {} {}", index(tensor.tensor()), tensor.blob(p),
                                  tensor.frame(p), tensor.form(p), tensor.offset(p),
                                  tensor.is_copy(p)));
  return lines;
}

/// What files have alike is found once, and it is what each of them would have given.
TEST(SourceCatalog, OfEqualTablesIsTheSameAsOfEachTable) {
  for (auto const& [family, mesh] :
       {std::pair("qwen3_moe", MeshSizes{.tp = 2, .pp = 2, .ep = 4, .etp = 1}),
        std::pair("qwen3_moe", MeshSizes{.tp = 4, .pp = 1, .ep = 2, .etp = 2}),
        std::pair("llama", MeshSizes{.tp = 2, .pp = 1, .vpp = 1})}) {
    SCOPED_TRACE(family);
    ScratchFolder const scratch{"equal_tables"};
    MadeCheckpoint const made = made_huggingface(sample_model(family));
    std::vector<std::vector<std::byte>> bytes(made.value.files.size());
    for (StoredChunk const& chunk : made.value.stored.chunks) {
      auto& file = bytes[chunk.item.file];
      file.resize(std::max(file.size(), chunk.item.offset_bytes + chunk.item.size_bytes));
    }
    write_target(planned(made, request_for(FormatId::megatron, mesh)), bytes,
                 scratch.path() / "folders");
    Checkpoint source =
        open_checkpoint(scratch.path() / "folders", FormatId::megatron, {}, LoneReader());
    ASSERT_TRUE(std::ranges::any_of(source.shares.places,
                                    [](auto const& one) { return one.alike.has_value(); }));
    PlanRequest const request = request_for(FormatId::megatron);
    Lines const together = lines_of(catalogue(source, request).source);
    NameTraits const traits = source.format->view(source, "").traits;
    for (SharePlace& place : source.shares.places) place.alike.reset();
    EXPECT_EQ(lines_of(catalogue(source, request).source), together);
    EXPECT_EQ(source.format->view(source, "").traits.form, traits.form);
    EXPECT_EQ(source.format->view(source, "").traits.padded_vocab, traits.padded_vocab);
  }
}

TEST(SourceCatalog, RefusesWhatIsMissingStrangeOrOfAnotherShape) {
  auto const expect_refusal = [](MadeCheckpoint made, std::string_view words) {
    Read read(std::move(made));
    std::string const sentence = refused(ErrorKind::source, [&] { read.catalog(); });
    EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
  };
  MadeCheckpoint strange = llama();
  strange.add_file({{"strange", {2}}});
  expect_refusal(strange, "'strange' matches no entry of llama.toml");
  MadeCheckpoint missing = llama();
  missing.value.stored.tensors.keep_if(
      [](StoredTensor const& tensor) { return tensor.name != "model.norm.weight"; });
  expect_refusal(missing, "model.norm.weight");
  MadeCheckpoint shape = llama();
  StoredTensors& tensors = shape.value.stored.tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (tensors.name(t) == "model.norm.weight")
      tensors.change(t, [](StoredTensor& norm) { norm.shape = {23}; });
  expect_refusal(shape, "'model.norm.weight' is BF16 [23]");
}

}  // namespace
}  // namespace reshard::test
