// The files of a Megatron target: shards that are alike are laid out once, and every shard has what
// it would have if it were laid out alone.

#include <gtest/gtest.h>

#include "core/containers/torch/torch_frame.hpp"
#include "core/formats/megatron/args.hpp"
#include "core/formats/megatron/directory.hpp"
#include "core/formats/megatron/mesh.hpp"
#include "core/formats/target_parts.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard::megatron {
namespace {

constexpr char const* family_name = "qwen3_moe";
constexpr test::MeshSizes two_of_each{.tp = 2, .pp = 2, .ep = 2, .etp = 2};

/// Bytes of a module's state: of an expert, by its global number.
struct ExpertState {
  Index expert = 0;
  std::uint64_t size_bytes = 0;
};

/// A small model with experts, and what a target of it is made from.
class SmallTarget {
 public:
  explicit SmallTarget(test::MeshSizes const& mesh)
      : family_(test::map_file(family_name)),
        core_(test::map_file("mcore")),
        model_(described(family_, core_)) {
    request_.mesh = mesh.mesh();
    request_.pipeline = pipeline(mesh.pp);
    SideOptions options;
    options.local = true;
    options.mesh = request_.mesh;
    options.options = {{"form", "sequential"}, {"spec", "te"}, {"mtp_block", "mtp_model_layer"}};
    side_.emplace(model_, core_, std::move(options));
    dtypes_.assign(model_.tensors().size(), DType::bf16);
    target_.chunks = pipeline_chunks(request_.pipeline);
    target_.args = {{"num_layers", Json(layers())}};
  }

  std::size_t experts() const {
    return static_cast<std::size_t>(*model_.value("expert").integer());
  }

  /// States of experts of the first layer, as a source with two expert ranks has them: the files of
  /// both have theirs at byte 100 and 200, …
  void take_states(std::vector<ExpertState> const& states) {
    auto const held = static_cast<Index>(experts()) / 2;
    Checkpoint source;
    source.mesh = test::MeshSizes{.ep = 2}.mesh();
    source.files = {"rank 0", "rank 1"};
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      SharePlace place;
      place.file = rank;
      place.at = source.mesh.at({{"ep", rank}});
      source.places.push_back(place);
      std::vector<ExtraEntry> entries;
      for (ExpertState const& state : states) {
        if (state.expert / held != rank) continue;
        ExtraEntry entry;
        entry.key =
            fmt::format("decoder.layers.0.mlp.experts.local_experts.{}.linear_fc1._extra_state",
                        state.expert % held);
        entry.kind = ExtraKind::uint8_tensor;
        entry.tensor.offset_bytes = 100 * (entries.size() + 1);
        entry.size_bytes = state.size_bytes;
        entries.push_back(std::move(entry));
      }
      if (entries.empty()) continue;
      ModuleStates& stored = source.module_states.emplace_back();
      stored.place = rank;
      stored.entries = std::make_shared<std::vector<ExtraEntry> const>(std::move(entries));
    }
    extras_.take(source, pipeline_chunks(pipeline(1)), static_cast<Index>(experts()));
    extras_.use_source_keys(true);
  }

  void set_dtype(std::string_view tensor, DType dtype) {
    dtypes_[index(*model_.find_tensor(tensor))] = dtype;
  }
  void set_arg(std::string const& key, Json value) { target_.args.emplace_back(key, value); }

  MegatronFiles lay_out() {
    draft_ = {};
    draft_.target.tensors.resize(model_.tensors().size());
    target_.extras = &extras_;
    return plan_megatron_target(draft_, parts(), target_);
  }
  TargetDraft const& draft() const { return draft_; }

  /// What surrounds the tensors of a file that was laid out.
  std::vector<FileSegment> bytes(std::size_t file) const {
    FileFrame const& frame = *draft_.files[file].frame;
    return frame.rest(std::vector<std::uint32_t>(frame.records().size()), {});
  }

  /// The same of the file at a place, made for it alone.
  std::vector<FileSegment> expected(ShardPlace const& place) {
    MeshPlace const at = place_of(request_.mesh, place);
    ShardContent content;
    content.args = target_.args;
    auto const sizes = target_args(
        {sizes_of(request_.mesh), request_.pipeline, side_->padded_size("vocab")}, Json());
    content.args.insert(content.args.end(), sizes.begin(), sizes.end());
    for (PipelineChunk const& chunk : target_.chunks) {
      if (chunk.rank != place.pp) continue;
      std::vector<ChunkEntry>& entries = content.chunks.emplace_back();
      std::vector<StoredName> const names = side_->names(&chunk);
      for (StoredName const& name : names) {
        ChunkEntry& entry = entries.emplace_back();
        entry.name = name.name;
        entry.dtype = stored_dtype(parts(), name);
        entry.shape = side_->layout(name.entry, {at, &chunk}).file_shape;
      }
      Run const held = *side_->held("expert", {at, &chunk});
      for (ExtraStates::Placed const& state : extras_.place(
               chunk, {held, static_cast<Index>(experts()) / (held.end - held.begin)}, names))
        entries.push_back(state.entry);
    }
    ShardDocument shard = build_shard(content);
    TorchFilePlan plan = plan_torch_file(shard.document, model_archive_name);
    std::vector<std::uint32_t> const crc32s(plan.storages.size());
    return render_torch_file(plan, crc32s);
  }

  /// The tensors of all files, found for each of them alone; without places in the file.
  Catalog expected_tensors() {
    Catalog result;
    result.tensors.resize(model_.tensors().size());
    std::vector<ShardPlace> const places = target_places(sizes_of(request_.mesh));
    for (std::uint32_t file = 0; file < places.size(); ++file)
      for (PipelineChunk const& chunk : target_.chunks) {
        if (chunk.rank != places[file].pp) continue;
        SidePlace const place{place_of(request_.mesh, places[file]), &chunk};
        for (StoredName const& name : side_->names(&chunk))
          result.add({file, 0, DType::bf16, name.name}, side_->pieces(name, place), name.copy);
      }
    return result;
  }

  /// Every file of the draft is what it would be alone.
  void expect_right() {
    std::vector<ShardPlace> const places = target_places(sizes_of(request_.mesh));
    ASSERT_EQ(draft_.files.size(), places.size());
    for (std::size_t file = 0; file < places.size(); ++file)
      EXPECT_EQ(bytes(file), expected(places[file])) << draft_.files[file].path;
  }

 private:
  static Model described(MapFile const& family, MapFile const& core) {
    for (test::SampleModel const& sample : test::sample_models()) {
      if (sample.family != family_name) continue;
      Model model(family, core, {sample.config, "config.json", 0});
      apply_family(model, Side(model, family, {}));
      return model;
    }
    fail(ErrorKind::internal, "there is no sample of {}", family_name);
  }
  int layers() const { return static_cast<int>(*model_.value("L").integer()); }
  PipelineSpec pipeline(int ranks) const {
    PipelineSpec spec;
    spec.ranks = ranks;
    spec.decoder_layers = layers();
    return spec;
  }
  TargetParts parts() const { return {&model_, &*side_, dtypes_, &request_}; }

  MapFile family_;
  MapFile core_;
  Model model_;
  TargetRequest request_;
  std::optional<Side> side_;
  std::vector<std::optional<DType>> dtypes_;
  ExtraStates extras_{"te", "sequential", ForeignClasses::refuse};
  MegatronTarget target_;
  TargetDraft draft_;
};

TEST(ShardFiles, ShardsThatAreAlikeAreLaidOutOnce) {
  SmallTarget target(two_of_each);
  EXPECT_EQ(target.lay_out().layouts, 2U) << "one for each pipeline rank";
  EXPECT_EQ(target.draft().files.size(), 8U);
  target.expect_right();
  EXPECT_EQ(target.draft().files[0].frame, target.draft().files[3].frame);
  EXPECT_NE(target.draft().files[0].frame, target.draft().files[4].frame);
}

TEST(ShardFiles, EachShardHasTensorsOfItsOwn) {
  SmallTarget target(two_of_each);
  target.lay_out();
  Catalog const& catalog = target.draft().target;
  Catalog const expected = target.expected_tensors();
  ASSERT_EQ(catalog.blobs.size(), expected.blobs.size());
  for (std::size_t blob = 0; blob < catalog.blobs.size(); ++blob) {
    EXPECT_EQ(catalog.blobs[blob].file, expected.blobs[blob].file);
    EXPECT_EQ(catalog.blobs[blob].name, expected.blobs[blob].name);
  }
  for (std::size_t tensor = 0; tensor < catalog.tensors.size(); ++tensor)
    EXPECT_EQ(catalog.tensors[tensor].made(), expected.tensors[tensor].made());
}

TEST(ShardFiles, AStateOfOneExpertRankMakesItsShardsDiffer) {
  SmallTarget target(two_of_each);
  target.take_states({{0, 16}});
  MegatronFiles const files = target.lay_out();
  EXPECT_EQ(files.layouts, 3U) << "experts 0, and the others, of the first stage; the second stage";
  target.expect_right();
  ASSERT_EQ(files.opaque.size(), 2U) << "for each tensor rank";
  for (OpaqueCopy const& copy : files.opaque) {
    EXPECT_EQ(copy.bytes, 16U);
    EXPECT_EQ(copy.src_file, 0U);
    EXPECT_EQ(copy.src_offset_bytes, 100U);
  }
}

TEST(ShardFiles, AShapeThatDiffersByOneMakesShardsDiffer) {
  SmallTarget target(two_of_each);
  auto const half = static_cast<Index>(target.experts()) / 2;
  target.take_states({{0, 16}, {half, 17}});
  EXPECT_EQ(target.lay_out().layouts, 3U);
  target.expect_right();
}

TEST(ShardFiles, StatesFromOtherPlacesAreCopiedIntoFilesThatAreAlike) {
  SmallTarget target(two_of_each);
  auto const half = static_cast<Index>(target.experts()) / 2;
  target.take_states({{0, 16}, {1, 8}, {half, 16}, {half + 1, 8}});
  MegatronFiles const files = target.lay_out();
  EXPECT_EQ(files.layouts, 2U);
  target.expect_right();
  ASSERT_EQ(files.opaque.size(), 8U);
  std::vector<ShardPlace> const places = target_places({.tp = 2, .pp = 2, .ep = 2, .etp = 2});
  for (OpaqueCopy const& copy : files.opaque) {
    EXPECT_EQ(copy.src_file, static_cast<std::uint32_t>(places[copy.dst_file].ep));
    EXPECT_EQ(copy.src_offset_bytes, copy.bytes == 16 ? 100U : 200U);
  }
}

TEST(ShardFiles, ADtypeOrAnArgIsOfTheTargetThatHasIt) {
  SmallTarget plain(two_of_each);
  plain.lay_out();
  SmallTarget wide(two_of_each);
  wide.set_dtype("lm_head", DType::f32);
  wide.lay_out();
  wide.expect_right();
  SmallTarget named(two_of_each);
  named.set_arg("seq_length", Json(8));
  named.lay_out();
  named.expect_right();
  EXPECT_EQ(plain.bytes(0), wide.bytes(0)) << "the output layer is on the last stage";
  EXPECT_NE(plain.bytes(4), wide.bytes(4));
  EXPECT_NE(plain.bytes(0), named.bytes(0));
}

}  // namespace
}  // namespace reshard::megatron
