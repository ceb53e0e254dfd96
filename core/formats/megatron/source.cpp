#include "core/formats/megatron/source.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "core/base/capture.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/headers/shared_headers.hpp"
#include "core/formats/megatron/headers/described_headers.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/megatron/headers/shard_headers.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/mcore/traits.hpp"
#include "core/formats/megatron/report.hpp"
#include "core/formats/megatron/state/rank_states.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/targets/copied_files.hpp"

namespace reshard::megatron {
namespace {

namespace fs = std::filesystem;

FilePaths model_files_in(Directory const& directory) {
  FilePaths files;
  for (Shard const& shard : directory.shards) {
    if (shard.model_file.empty())
      fail(ErrorKind::source,
           "{}: holds no {}, so the weights of this rank are missing. The save was "
           "interrupted, or the file was moved: restore it.",
           shard.path.string(), model_file_name);
    files.push_back(shard.model_path());
  }
  return files;
}

/// Makes one table of the headers of all shards.
class ShareTable {
 public:
  ShareTable(Directory const& directory, Classification const& classification, Headers& headers,
             Checkpoint& checkpoint)
      : directory_(directory),
        classification_(classification),
        headers_(headers),
        checkpoint_(checkpoint),
        known_(headers.commons.size()) {}

  void add_all(std::size_t more_tensors, std::size_t more_records) {
    for (std::size_t f = 0; f < headers_.common_of.size(); ++f) {
      for (ChunkTable const& chunk : headers_[f].chunks) more_tensors += chunk.tensors.size();
      more_records += headers_[f].records.size();
    }
    checkpoint_.stored.reserve(more_tensors);
    checkpoint_.records.reserve(more_records);
    for (std::size_t f = 0; f < headers_.common_of.size(); ++f) add(f);
  }

 private:
  /// Where the table has the tensors of a chunk, of the first file that has them.
  struct KnownChunk {
    std::size_t place = 0;  ///< of RankShares::places
    std::size_t first_tensor = 0;
    std::size_t tensor_count = 0;
    std::shared_ptr<std::vector<ExtraEntry> const> extras;
  };

  void add(std::size_t shard) {
    auto const file = narrow<std::uint32_t>(shard);
    ShardHeader& header = headers_.commons[headers_.common_of[shard]];
    std::vector<std::uint32_t> const& crc32 = headers_.own[shard].crc32;
    RESHARD_EXPECT(crc32.size() == header.records.size());
    for (std::size_t r = 0; r < crc32.size(); ++r)
      checkpoint_.records.push_back(
          {file, header.records[r].offset_bytes, header.records[r].size_bytes, 0,
           static_cast<std::uint64_t>(checkpoint_.stamps.taken[shard].bytes), crc32[r]});
    if (!header.unplaced.empty())
      checkpoint_.shares.defects.push_back(fmt::format(
          "{}: '{}' holds no tensor, where the model needs one. Save the checkpoint again.",
          directory_.shards[shard].model_path().string(), header.unplaced.front()));
    std::vector<KnownChunk>& known = known_[headers_.common_of[shard]];
    for (std::size_t c = 0; c < header.chunks.size(); ++c) {
      add_place(file, c, header.chunks.size());
      SharePlace& place = checkpoint_.shares.places.back();
      if (c < known.size()) {
        checkpoint_.stored.repeat(known[c].first_tensor, known[c].tensor_count, file);
        place.alike = known[c].place;
      } else {
        known.push_back(added(file, header.chunks[c]));
      }
      place.tensor_count = known[c].tensor_count;
      if (known[c].extras)
        checkpoint_.shares.module_states.push_back(
            {known[c].extras, checkpoint_.shares.places.size() - 1, fmt::format("model{}", c)});
    }
  }

  void add_place(std::uint32_t file, std::size_t chunk, std::size_t chunks) {
    ShardPlace const& at = classification_.places[file];
    std::size_t const number = chunk * static_cast<std::size_t>(classification_.sizes.pp) +
                               static_cast<std::size_t>(at.pp);
    checkpoint_.shares.places.push_back(
        {file,
         place_of(checkpoint_.shares.mesh, at),
         shard_coordinates(at),
         number,
         narrow<int>(chunk),
         directory_.shards[file].name + (chunks > 1 ? fmt::format(":model{}", chunk) : ""),
         checkpoint_.stored.tensors.size(),
         0,
         {}});
  }

  /// Takes the tensors and states out of `table`.
  KnownChunk added(std::uint32_t file, ChunkTable& table) {
    KnownChunk chunk{checkpoint_.shares.places.size() - 1, checkpoint_.stored.tensors.size(),
                     table.tensors.size(), nullptr};
    for (FileTensor& tensor : table.tensors)
      checkpoint_.stored.add_whole(std::move(tensor.name), tensor.dtype, tensor.shape,
                                   {file, tensor.offset_bytes, tensor.size_bytes},
                                   std::move(tensor.strides));
    if (!table.extras.empty())
      chunk.extras = std::make_shared<std::vector<ExtraEntry> const>(std::move(table.extras));
    table = {};
    return chunk;
  }

  Directory const& directory_;
  Classification const& classification_;
  Headers& headers_;
  Checkpoint& checkpoint_;
  std::vector<std::vector<KnownChunk>> known_;  ///< by common header
};

/// The state other than weights; only a few values are known to be independent of the layout.
StateInventory inventory_of(Directory const& directory, Headers const& headers) {
  static std::vector<std::string> const kept = {"opt_param_scheduler", "lr_scheduler",
                                                "num_floating_point_operations_so_far"};
  StateInventory result;
  auto const note = [](HeldState& state, std::string const& example) {
    if (!state) state = {StateForm::in_model_files, example};
  };
  if (!directory.optimizer_only.empty()) note(result.optimizer, directory.optimizer_only.front());
  std::set<std::string_view> seen(kept.begin(), kept.end());
  for (std::size_t f = 0; f < headers.common_of.size(); ++f) {
    if (headers[f].has_optimizer) note(result.optimizer, "optimizer");
    if (headers[f].has_rng) note(result.rng, "rng_state");
    for (std::string const& file : directory.shards[f].files)
      if (file.find("optim.pt") != std::string::npos || file.starts_with("layer_wise_optimizer"))
        note(result.optimizer, file);
    for (std::string const& key : headers[f].other_keys)
      if (seen.insert(key).second) result.others.push_back(key);
  }
  return result;
}

/// The facts for classify().
std::size_t tensors_in(FileState const& state) {
  std::size_t count = 0;
  for (StateBuffer const& buffer : state.buffers) count += buffer.states.size();
  for (StateGroup const& group : state.groups)
    for (std::vector<FileTensor> const& member : group.members) count += member.size();
  return count;
}

/// Which shard each file belongs to: model files first, then those of distributed optimizers.
std::vector<std::size_t> shards_of(Directory const& directory) {
  std::vector<std::size_t> shards(directory.shards.size());
  std::iota(shards.begin(), shards.end(), std::size_t{0});
  for (std::size_t s = 0; s < directory.shards.size(); ++s)
    if (std::ranges::binary_search(directory.shards[s].files, distributed_file_name))
      shards.push_back(s);
  return shards;
}

void check_iterations(Headers const& headers, Checkpoint const& checkpoint) {
  for (std::size_t f = 1; f < headers.common_of.size(); ++f)
    if (headers[f].iteration != headers[0].iteration)
      fail(ErrorKind::source,
           "{}: 'iteration' is {}, and {} in {}. The files are of two saves: restore those of one.",
           checkpoint.files[f].string(), headers[f].iteration, headers[0].iteration,
           checkpoint.files.front().string());
}

/// The ranks of a run are numbered along each axis, whatever the order of the axes: of two shards
/// that differ in one number only, the later one has the higher rank. A program that writes all
/// shards has one rank for all.
void check_ranks(Headers const& headers, std::vector<ShardPlace> const& places,
                 Checkpoint const& checkpoint) {
  std::map<std::tuple<int, int, int>, std::size_t> known;
  for (std::size_t f = 0; f < places.size(); ++f)
    known.emplace(std::tuple(places[f].tp, places[f].pp, places[f].ep), f);
  auto const check = [&](std::size_t f, ShardPlace const& before, std::string_view axis) {
    auto const found = known.find({before.tp, before.pp, before.ep});
    if (found == known.end() || headers.own[f].rank < 0 || headers.own[found->second].rank < 0 ||
        headers.own[found->second].rank <= headers.own[f].rank)
      return;
    fail(ErrorKind::source,
         "{}: was saved by rank {} (args.rank), and {} by rank {}. Ranks are numbered along the "
         "{}, so files of ranks were exchanged: put each into the folder of its rank, or restore "
         "them from the original.",
         checkpoint.files[f].string(), headers.own[f].rank,
         checkpoint.files[found->second].string(), headers.own[found->second].rank, axis);
  };
  for (std::size_t f = 0; f < places.size(); ++f) {
    ShardPlace const& at = places[f];
    check(f, {at.tp - 1, at.pp, at.ep}, "tensor-parallel axis");
    check(f, {at.tp, at.pp - 1, at.ep}, "pipeline");
    check(f, {at.tp, at.pp, at.ep - 1}, "expert-parallel axis");
  }
}

/// Tensor-parallel ranks hold different parts of each matrix. Stages and experts may be equal where
/// training begins.
void refuse_copies(std::vector<ShardPlace> const& places, std::vector<std::size_t> const& shards,
                   Checkpoint const& checkpoint) {
  std::map<std::tuple<bool, int, int>, DifferentFiles> lists;
  for (std::size_t f = 0; f < checkpoint.files.size(); ++f) {
    ShardPlace const& at = places[shards[f]];
    lists[{f < places.size(), at.pp, at.ep}].push_back(narrow<std::uint32_t>(f));
  }
  std::vector<DifferentFiles> all;
  for (auto& [key, list] : lists) all.push_back(std::move(list));
  refuse_copied_files(checkpoint, all);
}

}  // namespace

FormatWords MegatronFormat::words() const {
  return {.help = "mp_rank_* folders",
          .sign = "mp_rank_* or iter_* folder (Megatron)",
          .remains = {"latest_checkpointed_iteration.txt", "iter_*/", "release/", "mp_rank_*",
                      "layer_*_states.pt", "*zero_pp_rank_*"}};
}

bool MegatronFormat::probe(fs::path const& path) const { return looks_like_megatron(path); }

Checkpoint MegatronFormat::open(fs::path const& path, OpenChoice const& choice,
                                HeaderExchange const& exchange) const {
  Checkpoint checkpoint;
  checkpoint.format = this;
  checkpoint.names = NameOwner::megatron;
  checkpoint.storage = Storage::shares;
  Directory directory;
  bool with_states = false;
  exchange.together_seeing([&] {
    directory = open_directory(path);
    checkpoint.files = model_files_in(directory);
    with_states = choice.rank_states && has_known_states(directory);
    if (with_states) checkpoint.files.add(distributed_files(directory));
  });
  checkpoint.root = directory.root;
  checkpoint.folder = directory.iteration_dir;
  checkpoint.place = directory.iteration_dir.string();
  SharedHeaders packed;
  {
    ShardHeaderReader reader(checkpoint.files.front(), with_states);
    packed =
        shared_headers(checkpoint, exchange, [&](File const& file) { return reader.read(file); });
  }
  exchange.together([&] {
    Headers headers = unpacked_headers(packed, directory.shards.size());
    packed = {};
    Classification const found = classify(facts_of_all(directory, headers), choice.sizes);
    require_readable(found, checkpoint.place);
    checkpoint.shares.mesh = mesh_of(found.sizes);
    checkpoint.shares.file_mesh = shard_mesh(found.sizes);
    checkpoint.shares.layout = layout_text(found.sizes);
    checkpoint.shares.chunks_per_file = static_cast<std::size_t>(found.sizes.vpp);
    checkpoint.warnings = directory.notes;
    for (std::string const& note : found.notes)
      if (!note.starts_with(size_not_given))
        checkpoint.warnings.push_back(note);  // a job has no such key to give
    checkpoint.run.args = std::move(headers.args);
    check_iterations(headers, checkpoint);
    checkpoint.run.stated_iteration = headers[0].iteration;
    if (!directory.release) checkpoint.run.iteration = directory.iteration;
    checkpoint.state.inventory = inventory_of(directory, headers);
    checkpoint.summary =
        fmt::format("{}, {} shard{}", checkpoint.shares.mesh.text(), directory.shards.size(),
                    directory.shards.size() == 1 ? "" : "s");
    std::size_t state_tensors = 0;
    std::size_t state_records = 0;
    for (std::size_t f = 0; f < headers.own.size(); ++f) {
      state_tensors += tensors_in(headers.states.of(f));
      state_records += headers.states.of(f).records.size();
    }
    ShareTable(directory, found, headers, checkpoint).add_all(state_tensors, state_records);
    if (with_states) add_rank_states(checkpoint, headers.states, shards_of(directory));
    check_ranks(headers, found.places, checkpoint);
    if (choice.compare_files) refuse_copies(found.places, shards_of(directory), checkpoint);
  });
  return checkpoint;
}

Inspection MegatronFormat::describe(fs::path const& path, UserSizes const& sizes) const {
  Directory const directory = open_directory(path);
  DescribedHeaders const headers(directory);
  std::vector<ShardHeader const*> const& pointers = headers.of_shard();
  Classification found = classify(headers.facts(), sizes);
  for (Error const& error : headers.damage()) found.mismatches.push_back({error.sentence(), false});
  Inspection result;
  result.folder = directory.iteration_dir;
  for (ShardHeader const* const header : pointers)
    if (result.args.is_null() && header != nullptr) result.args = header->args;
  result.json.set("path", path.string()).set("format", name());
  Json const report = inspect_json(directory, found, pointers);
  for (auto const& [key, value] : *report.members()) result.json.set(key, value);
  std::string const head =
      fmt::format("path              {}\nformat            {}\n", path.string(), name());
  result.text = head + inspect_text(report);
  result.summary = head + inspect_summary(report);
  for (Json const& mismatch : *report.find("mismatches")->items())
    result.mismatches.push_back(*mismatch.text());
  for (Json const& note : *report.find("notes")->items())
    (note.text()->starts_with(size_not_given) ? result.details : result.notes)
        .push_back(*note.text());
  result.sound = result.mismatches.empty();
  return result;
}

StoredView MegatronFormat::view(Checkpoint const& checkpoint, std::string const& /*prefix*/) const {
  StoredView view;
  view.traits = traits_of_shares(checkpoint);
  if (checkpoint.state.rank_states) {
    view.states = checkpoint.state.rank_states->slots;
    view.buffers = checkpoint.state.rank_states->buffers;
    view.lists = checkpoint.state.rank_states->lists;
  }
  return view;
}

std::optional<RunRecord> MegatronFormat::run_record(Checkpoint const& checkpoint) const {
  RunRecord record;
  fs::path const& file = checkpoint.files.front();
  record.torch = std::make_shared<TorchFile>(read_torch_file(File::open_for_reading(file)));
  record.file = file.string();
  record.iteration = checkpoint.run.stated_iteration;
  record.folder_iteration = checkpoint.run.iteration;
  return record;
}

std::optional<huggingface::Folder> MegatronFormat::model_files(Checkpoint const& checkpoint) const {
  return carried_in(checkpoint.folder, checkpoint.root);
}

}  // namespace reshard::megatron
