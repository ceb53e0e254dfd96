#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

#include "core/containers/torch/torch_frame.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/state/rank_state.hpp"
#include "core/formats/megatron/state/state_target.hpp"
#include "core/formats/targets/target_parts.hpp"
#include "core/mapping/expressions/placed_name.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view distributed_archive_name = "distrib_optim";

/// The values that determine the files of a shard, except for the bytes of its tensors: all values
/// in a document that differ between the shards of a pipeline rank. Shards of one kind have the
/// same files.
struct ShardKind {
  std::vector<Index> shapes;          ///< of the entries of its chunks: each with its size in front
  std::vector<std::uint32_t> extras;  ///< by chunk: the number of its list of states of modules
  std::vector<bool> optimizers;       ///< those with flat buffers in a separate file
  friend auto operator<=>(ShardKind const&, ShardKind const&) = default;
};

/// A tensor of a laid out file, with its parts of the model's tensors.
struct FileTensorParts {
  std::uint64_t offset_bytes = 0;
  DType dtype = DType::u8;
  SharedText name;
  std::vector<megatron::StateTensor::Part> parts;
};

/// The state of a module whose bytes are copied: entry `extra` of a chunk's list of such states.
struct FileExtra {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::size_t chunk = 0;
  std::size_t extra = 0;
};

/// A file of a shard, wherever that shard stands.
struct FileLayout {
  std::uint64_t size_bytes = 0;
  std::shared_ptr<FileFrame const> frame;
  std::vector<FileTensorParts> tensors;
  std::vector<FileExtra> extras;
};

struct ShardLayout {
  FileLayout model;
  std::optional<FileLayout> distributed;  ///< distrib_optim.pt
};

/// The states of modules of one file of a chunk. Lists of equal entries have equal numbers,
/// wherever their bytes come from.
struct ChunkExtras {
  std::uint32_t number = 0;
  std::vector<ExtraStates::Placed> states;
};

/// A model chunk of the pipeline rank whose shards are being laid out.
struct StageChunk {
  /// The common properties of several stored names: dtype and shape.
  struct Entry {
    StoredName const* first = nullptr;
    std::optional<DType> dtype;
  };

  PipelineChunk const* chunk = nullptr;
  std::vector<StoredName> names;
  std::vector<Entry> entries;
  std::vector<std::size_t> entry_of;                   ///< by name
  std::map<std::array<Index, 3>, ChunkExtras> extras;  ///< by the experts of a file
};

StageChunk stage_chunk(PipelineChunk const& chunk, std::vector<StoredName> names) {
  StageChunk result{&chunk, std::move(names), {}, {}, {}};
  std::map<std::uint32_t, std::size_t> known;
  for (StoredName const& name : result.names) {
    auto const [entry, is_new] = known.try_emplace(name.entry, result.entries.size());
    if (is_new) result.entries.push_back({&name, std::nullopt});
    result.entry_of.push_back(entry->second);
  }
  return result;
}

class MegatronPlanner {
 public:
  MegatronPlanner(TargetDraft& job, TargetParts const& parts, MegatronTarget const& target)
      : job_(job), parts_(parts), target_(target) {
    sizes_ = megatron::shard_sizes(parts.request->target.mesh);
    if (target.record == nullptr) return;
    pickle::Document const& document = target.record->document();
    content_.source = &document;
    check_carried(*target.record, megatron::find_args(document), "args");
    content_.carried = megatron::carried_values(document);
    for (megatron::Carried const& carried : content_.carried)
      check_carried(*target.record, carried.node, carried.key);
    content_.iteration = target.record->iteration;
  }

  MegatronFiles run() {
    Json const experts = parts_.model->value("expert");
    experts_ = experts.integer() != nullptr ? *experts.integer() : 0;
    set_args();
    for (PipelineChunk const& chunk : target_.chunks)
      chunks_.push_back(stage_chunk(chunk, parts_.side->names(&chunk)));
    folder_ = run_folder(target_.record);
    for (megatron::ShardPlace const& place : megatron::target_places(sizes_)) add_shard(place);
    job_.texts.push_back(
        {std::string(megatron::tracker_name), run_tracker(target_.record), true, {}});
    return std::move(result_);
  }

 private:
  void set_args() {
    megatron::TargetArgs stated{sizes_, parts_.request->target.pipeline,
                                parts_.side->padded_size("vocab"), target_.release};
    content_.args = target_.args;
    auto const sizes = megatron::target_args(stated, target_.source_args);
    content_.args.insert(content_.args.end(), sizes.begin(), sizes.end());
    content_.args.insert(content_.args.end(), target_.last_args.begin(), target_.last_args.end());
  }

  void add_shard(megatron::ShardPlace const& place) {
    begin_stage(place.pp);
    MeshPlace const at = megatron::place_of(parts_.request->target.mesh, place);
    std::vector<ChunkExtras const*> extras;
    auto const [known, is_new] = layouts_.try_emplace(kind_of(place, at, extras));
    if (is_new) {
      known->second = laid_out(place, at, extras);
      ++result_.layouts;
    }
    ShardLayout const& layout = known->second;
    for (FileExtra const& extra : layout.model.extras) {
      ExtraStates::Placed const& state = extras[extra.chunk]->states[extra.extra];
      result_.opaque.push_back({state.source_file, narrow<std::uint32_t>(job_.files.size()),
                                state.source_offset_bytes, extra.offset_bytes, extra.size_bytes});
    }
    fs::path const folder =
        folder_ /
        megatron::format_shard_name(place, sizes_, parts_.request->options.megatron.mp_rank_style);
    add_file(folder / megatron::model_file_name, place, at, layout.model);
    if (layout.distributed)
      add_file(folder / megatron::distributed_file_name, place, at, *layout.distributed);
  }

  /// Shards are in order of pipeline rank: clears the data of the previous one.
  void begin_stage(int pipeline_rank) {
    if (pipeline_rank_ == pipeline_rank) return;
    pipeline_rank_ = pipeline_rank;
    for (StageChunk* chunk : stage_) chunk->extras.clear();
    stage_.clear();
    layouts_.clear();
    placed_.clear();
    extra_lists_.clear();
    for (StageChunk& chunk : chunks_)
      if (chunk.chunk->rank == pipeline_rank) stage_.push_back(&chunk);
  }

  ShardKind kind_of(megatron::ShardPlace const& place, MeshPlace const& at,
                    std::vector<ChunkExtras const*>& extras) {
    ShardKind kind;
    auto const add = [&](std::vector<Index> const& shape) {
      kind.shapes.push_back(static_cast<Index>(shape.size()));
      kind.shapes.insert(kind.shapes.end(), shape.begin(), shape.end());
    };
    for (StageChunk* chunk : stage_) {
      SidePlace const side_place{at, chunk->chunk};
      for (StageChunk::Entry& entry : chunk->entries) {
        if (!entry.dtype) entry.dtype = stored_dtype(parts_, *entry.first);
        EntryLayout const& layout = parts_.side->layout(entry.first->entry, side_place);
        add(layout.file_shape);
        add(layout.layout.shape);
      }
      extras.push_back(&extras_of(*chunk, side_place));
      kind.extras.push_back(extras.back()->number);
    }
    if (target_.distributed) kind.optimizers = target_.state->held(place);
    return kind;
  }

  ChunkExtras const& extras_of(StageChunk& chunk, SidePlace const& place) {
    ExtraStates::HeldExperts const experts = experts_at(place);
    auto const [known, is_new] =
        chunk.extras.try_emplace({experts.run.begin, experts.run.end, experts.ranks});
    // Checkpoints of adapters have no states of modules.
    if (!is_new || !parts_.model->adapter_ranks().empty()) return known->second;
    std::vector<megatron::ChunkEntry> entries;
    known->second.states = target_.extras->place(*chunk.chunk, experts, chunk.names);
    for (ExtraStates::Placed const& state : known->second.states) entries.push_back(state.entry);
    auto const list = std::ranges::find(extra_lists_, entries);
    known->second.number = narrow<std::uint32_t>(list - extra_lists_.begin());
    if (list == extra_lists_.end()) extra_lists_.push_back(std::move(entries));
    return known->second;
  }

  ExtraStates::HeldExperts experts_at(SidePlace const& place) const {
    std::optional<Run> const held = parts_.side->held("expert", place);
    if (!held || held->end == held->begin) return {};
    return {*held, experts_ / (held->end - held->begin)};
  }

  /// The files of all shards of the kind that the shard at a place has.
  ShardLayout laid_out(megatron::ShardPlace const& place, MeshPlace const& at,
                       std::vector<ChunkExtras const*> const& extras) {
    content_.chunks.clear();
    for (std::size_t c = 0; c < stage_.size(); ++c)
      content_.chunks.push_back(entries_of(*stage_[c], at, extras[c]->states));
    megatron::ShardDocument shard = megatron::build_shard(content_);
    std::vector<megatron::StateTensor> states;
    if (target_.state != nullptr) target_.state->add_to_shard(shard.document, place, states);
    TorchFilePlan plan =
        plan_torch_file(shard.document, megatron::model_archive_name, job_.data_layout);
    ShardLayout result;
    for (std::size_t i = 0; i < shard.tensors.size(); ++i)
      add_entry(result.model, plan.storages[i], shard.tensors[i], extras);
    complete(result.model, std::move(plan), shard.tensors.size(), std::move(states));
    if (!target_.distributed) return result;
    if (auto file = target_.state->distributed_file(place)) {
      plan = plan_torch_file(file->document, distributed_archive_name, job_.data_layout);
      complete(result.distributed.emplace(), std::move(plan), 0, std::move(file->tensors));
    }
    return result;
  }

  /// The entries of a chunk: stored names, then states of modules.
  std::vector<megatron::ChunkEntry> entries_of(
      StageChunk const& chunk, MeshPlace const& at,
      std::vector<ExtraStates::Placed> const& extras) const {
    std::vector<megatron::ChunkEntry> entries;
    for (std::size_t n = 0; n < chunk.names.size(); ++n) {
      StoredName const& name = chunk.names[n];
      megatron::ChunkEntry entry;
      entry.name = name.name;
      entry.dtype = *chunk.entries[chunk.entry_of[n]].dtype;
      entry.shape = parts_.side->layout(name.entry, {at, chunk.chunk}).file_shape;
      entries.push_back(std::move(entry));
    }
    for (ExtraStates::Placed const& extra : extras) entries.push_back(extra.entry);
    return entries;
  }

  void add_entry(FileLayout& file, ZipRecord const& record, megatron::EntryPlace const& place,
                 std::vector<ChunkExtras const*> const& extras) const {
    StageChunk const& chunk = *stage_[place.chunk];
    if (place.entry >= chunk.names.size()) {
      std::size_t const extra = place.entry - chunk.names.size();
      if (extras[place.chunk]->states[extra].opaque)
        file.extras.push_back({record.payload_offset_bytes, record.size_bytes, place.chunk, extra});
      return;
    }
    StoredName const& name = chunk.names[place.entry];
    file.tensors.push_back({record.payload_offset_bytes,
                            *chunk.entries[chunk.entry_of[place.entry]].dtype,
                            name.name,
                            {{&name, chunk.chunk}}});
  }

  /// Completes a file whose storages from `first` on are `states`.
  void complete(FileLayout& file, TorchFilePlan plan, std::size_t first,
                std::vector<megatron::StateTensor> states) {
    std::vector<std::string> payloads(plan.storages.size());
    for (std::size_t i = 0; i < states.size(); ++i) {
      megatron::StateTensor& state = states[i];
      payloads[first + i] = std::move(state.payload);
      if (!state.parts.empty())
        file.tensors.push_back({plan.storages[first + i].payload_offset_bytes, state.dtype,
                                state.name, std::move(state.parts)});
    }
    file.size_bytes = plan.size_bytes;
    file.frame = frames_.shared(std::move(plan), std::move(payloads));
  }

  void add_file(fs::path const& path, megatron::ShardPlace const& place, MeshPlace const& at,
                FileLayout const& layout) {
    auto const file = narrow<std::uint32_t>(job_.files.size());
    job_.target.files.push_back(path.string());
    for (FileTensorParts const& tensor : layout.tensors)
      for (megatron::StateTensor::Part const& part : tensor.parts)
        job_.target.add({file, tensor.offset_bytes, tensor.dtype, tensor.name}, pieces_of(part, at),
                        part.name->copy);
    job_.files.push_back(
        {path, layout.size_bytes, megatron::shard_coordinates(place), layout.frame});
  }

  /// The pieces of a part in the shard at a place; valid until the next call.
  std::span<InternedPiece const> pieces_of(megatron::StateTensor::Part const& part,
                                           MeshPlace const& at) {
    PlacedName& name = placed_.try_emplace(part.name, *parts_.side, *part.name).first->second;
    auto const pieces = name.pieces({at, part.chunk});
    if (part.slot == SlotId::weight && part.offset == 0) return pieces;
    pieces_.assign(pieces.begin(), pieces.end());
    for (InternedPiece& piece : pieces_) {
      piece.tensor = parts_.model->in_slot(piece.tensor, part.slot);
      piece.offset += part.offset;
    }
    return pieces_;
  }

  TargetDraft& job_;
  TargetParts const& parts_;
  MegatronTarget const& target_;
  megatron::MeshSizes sizes_;
  Index experts_ = 0;
  megatron::ShardContent content_;
  fs::path folder_;
  std::vector<StageChunk> chunks_;
  int pipeline_rank_ = -1;                                      ///< the current one
  std::vector<StageChunk*> stage_;                              ///< its chunks
  std::vector<std::vector<megatron::ChunkEntry>> extra_lists_;  ///< of its shards, by number
  std::map<ShardKind, ShardLayout> layouts_;
  TorchFrames frames_;
  std::unordered_map<StoredName const*, PlacedName> placed_;  ///< of this pipeline rank
  std::vector<InternedPiece> pieces_;
  MegatronFiles result_;
};

}  // namespace

MegatronFiles plan_megatron_target(TargetDraft& job, TargetParts const& parts,
                                   MegatronTarget const& target) {
  return MegatronPlanner(job, parts, target).run();
}

}  // namespace reshard
