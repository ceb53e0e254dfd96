// The files of a Megatron target: shards that are alike are laid out once, and every shard has what
// it would have if it were laid out alone.

#include <gtest/gtest.h>

#include "core/containers/torch/torch_frame.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/state/state_target.hpp"
#include "core/formats/targets/target_parts.hpp"
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
    request_.target.mesh = mesh.mesh();
    request_.target.pipeline = pipeline(mesh.pp);
    SideOptions options;
    options.local = true;
    options.mesh = request_.target.mesh;
    options.options = {{"form", "sequential"}, {"spec", "te"}, {"mtp_block", "mtp_model_layer"}};
    side_.emplace(model_, core_, std::move(options));
    dtypes_.assign(model_.tensors().size(), DType::bf16);
    target_.chunks = pipeline_chunks(request_.target.pipeline);
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
    source.shares.mesh = test::MeshSizes{.ep = 2}.mesh();
    source.files = {"rank 0", "rank 1"};
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      SharePlace place;
      place.file = rank;
      place.at = source.shares.mesh.at({{"ep", rank}});
      source.shares.places.push_back(place);
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
      ModuleStates& stored = source.shares.module_states.emplace_back();
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

  /// Adam's state of all weights, of experts in an optimizer of their own.
  void add_adam(bool distributed) {
    std::vector<std::string> const slots = {"param", "exp_avg", "exp_avg_sq"};
    std::size_t const weights = model_.tensors().size();
    model_.add_slots(slots);
    dtypes_.resize(model_.tensors().size(), DType::f32);
    for (std::size_t weight = 0; weight < weights; ++weight)
      for (std::size_t slot = 1; slot <= slots.size(); ++slot)
        model_.set_exists(model_.in_slot(TensorId(weight), SlotId(slot)),
                          model_.exists(TensorId(weight)));
    target_.distributed = distributed;
    settings_.torch_step = 7;
    pickle::Document& document = settings_.document;
    for (int chain = 0; chain < 2; ++chain) {
      std::vector<pickle::NodeId> groups;
      for (double const decay : {0.0, 1.0}) {
        groups.push_back(document.add_dict());
        document.set(groups.back(), "wd_mult", document.add_real(decay));
        document.set(groups.back(), "params", document.add_list());
      }
      pickle::NodeId const inner = document.add_dict();
      document.set(inner, "param_groups", document.add_list(std::move(groups)));
      pickle::NodeId const outer = document.add_dict();
      document.set(outer, "optimizer", inner);
      settings_.optimizers.push_back(outer);
    }
  }

  MegatronFiles lay_out() {
    draft_ = {};
    draft_.target.tensors.resize(model_.tensors().size());
    target_.extras = &extras_;
    parts_ = parts();
    auto const state = state_target();
    target_.state = state.get();
    return plan_megatron_target(draft_, parts_, target_);
  }
  TargetDraft const& draft() const { return draft_; }

  /// What surrounds the tensors of a file that was laid out.
  std::vector<FileSegment> bytes(std::size_t file) const {
    FileFrame const& frame = *draft_.files[file].frame;
    return frame.rest(std::vector<std::uint32_t>(frame.records().size()), {});
  }

  /// The same of the files at a place, made for it alone.
  std::vector<std::vector<FileSegment>> expected(ShardPlace const& place) {
    std::vector<std::vector<FileSegment>> files;
    ShardDocument shard = build_shard(content_of(place));
    std::vector<StateTensor> states;
    auto const state = state_target();
    if (state) state->add_to_shard(shard.document, place, states);
    files.push_back(rendered(plan_torch_file(shard.document, model_archive_name), states));
    if (!target_.distributed) return files;
    if (auto file = state->distributed_file(place))
      files.push_back(rendered(plan_torch_file(file->document, "distrib_optim"), file->tensors));
    return files;
  }

  /// The tensors of all files, found for each of them alone; without places in the file.
  Catalog expected_tensors() {
    Catalog result;
    result.tensors.resize(model_.tensors().size());
    std::uint32_t file = 0;
    for (ShardPlace const& place : target_places(sizes_of(request_.target.mesh))) {
      MeshPlace const at = place_of(request_.target.mesh, place);
      for (PipelineChunk const& chunk : target_.chunks) {
        if (chunk.rank != place.pp) continue;
        for (StoredName const& name : side_->names(&chunk))
          result.add({file, 0, DType::bf16, name.name}, side_->pieces(name, {at, &chunk}),
                     name.copy);
      }
      auto const state = state_target();
      if (state) {
        ShardDocument shard = build_shard(content_of(place));
        std::vector<StateTensor> states;
        state->add_to_shard(shard.document, place, states);
        add_states(result, file, at, states);
      }
      ++file;
      if (!target_.distributed) continue;
      if (auto const beside = state->distributed_file(place))
        add_states(result, file++, at, beside->tensors);
    }
    return result;
  }

  /// Every file of the draft, and every tensor in it, is what it would be alone.
  void expect_right() {
    std::vector<std::vector<FileSegment>> files;
    for (ShardPlace const& place : target_places(sizes_of(request_.target.mesh)))
      for (std::vector<FileSegment>& file : expected(place)) files.push_back(std::move(file));
    ASSERT_EQ(draft_.files.size(), files.size());
    for (std::size_t file = 0; file < files.size(); ++file)
      EXPECT_EQ(bytes(file), files[file]) << draft_.files[file].path;
    Catalog const& found = draft_.target;
    Catalog const tensors = expected_tensors();
    ASSERT_EQ(found.blobs.size(), tensors.blobs.size());
    for (std::size_t blob = 0; blob < found.blobs.size(); ++blob) {
      EXPECT_EQ(found.blobs[blob].file, tensors.blobs[blob].file);
      EXPECT_EQ(found.blobs[blob].name, tensors.blobs[blob].name);
    }
    for (std::size_t tensor = 0; tensor < found.tensors.size(); ++tensor)
      EXPECT_EQ(found.tensors[tensor].made(), tensors.tensors[tensor].made());
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

  ShardContent content_of(ShardPlace const& place) {
    MeshPlace const at = place_of(request_.target.mesh, place);
    ShardContent content;
    content.args = target_.args;
    auto const sizes = target_args(
        {sizes_of(request_.target.mesh), request_.target.pipeline, side_->padded_size("vocab")},
        Json());
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
    return content;
  }

  std::unique_ptr<StateTarget> state_target() const {
    if (model_.slots().size() == 1) return nullptr;
    return std::make_unique<StateTarget>(
        StateModel{parts_, core_, target_.chunks, args_, settings_, target_.distributed});
  }

  /// What is around the tensors of a file whose last ones are `states`.
  static std::vector<FileSegment> rendered(TorchFilePlan plan,
                                           std::vector<StateTensor> const& states) {
    std::vector<std::string> payloads(plan.storages.size());
    std::size_t const first = payloads.size() - states.size();
    for (std::size_t i = 0; i < states.size(); ++i) payloads[first + i] = states[i].payload;
    TorchFrame const frame(std::move(plan), std::move(payloads));
    return frame.rest(std::vector<std::uint32_t>(frame.records().size()), {});
  }

  void add_states(Catalog& to, std::uint32_t file, MeshPlace const& at,
                  std::vector<StateTensor> const& states) const {
    for (StateTensor const& state : states)
      for (StateTensor::Part const& part : state.parts) {
        std::vector<Piece> pieces = side_->pieces(*part.name, {at, part.chunk});
        for (Piece& piece : pieces) {
          piece.tensor = model_.in_slot(piece.tensor, part.slot);
          piece.offset += part.offset;
        }
        to.add({file, 0, state.dtype, state.name}, pieces, part.name->copy);
      }
  }

  MapFile family_;
  MapFile core_;
  Model model_;
  PlanRequest request_;
  std::optional<Side> side_;
  std::vector<std::optional<DType>> dtypes_;
  ExtraStates extras_{"te", "sequential", ForeignClasses::refuse};
  MegatronTarget target_;
  Json args_ = Json::object();
  OptimizerSettings settings_;
  TargetParts parts_;
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

TEST(ShardFiles, StateInModelFilesIsLaidOutOnce) {
  SmallTarget target(two_of_each);
  target.add_adam(false);
  EXPECT_EQ(target.lay_out().layouts, 2U);
  EXPECT_EQ(target.draft().files.size(), 8U);
  target.expect_right();
}

TEST(ShardFiles, FlatBuffersBesideAShardMakeItDiffer) {
  SmallTarget target({.tp = 2, .pp = 2, .ep = 4, .etp = 1});
  target.add_adam(true);
  MegatronFiles const files = target.lay_out();
  EXPECT_EQ(files.layouts, 4U) << "with buffers of experts alone, and with those of all";
  EXPECT_EQ(target.draft().files.size(), 16U);
  target.expect_right();
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
