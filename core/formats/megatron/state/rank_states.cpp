#include "core/formats/megatron/state/rank_states.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

#include "core/base/text/text.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/plan/equal/state_checks.hpp"

namespace reshard::megatron {
namespace {

namespace fs = std::filesystem;

class StateTable {
 public:
  StateTable(Checkpoint& checkpoint, std::vector<std::size_t> const& shards)
      : checkpoint_(checkpoint), shards_(shards), sizes_(sizes_of(checkpoint.shares.mesh)) {
    for (SharePlace const& place : checkpoint.shares.places) {
      if (place.file >= at_.size()) at_.resize(place.file + 1);
      at_[place.file] = place.at;
    }
  }

  void add(std::size_t file, FileState const& state, OwnFileState const& own) {
    file_ = narrow<std::uint32_t>(file);
    where_ = checkpoint_.files[file].string();
    RESHARD_EXPECT(own.crc32.size() == state.records.size());
    for (std::size_t r = 0; r < own.crc32.size(); ++r)
      checkpoint_.records.push_back(
          {file_, state.records[r].offset_bytes, state.records[r].size_bytes, 0,
           static_cast<std::uint64_t>(checkpoint_.stamps.taken[file].bytes), own.crc32[r]});
    check_steps(own.torch_steps);
    for (StateBuffer const& buffer : state.buffers) add_buffer(buffer);
    for (StateGroup const& group : state.groups) add_group(group);
    if (state.settings.empty() || std::ranges::count(result_.settings, state.settings) > 0) return;
    result_.settings.push_back(state.settings);
    result_.places.push_back(where_);
  }

  RankStates finish() && {
    result_.distributed = !result_.buffers.empty();
    for (FlatBuffer& buffer : result_.buffers)
      for (auto& states : buffer.buckets) complete(states, buffer.where);
    for (StateList& list : result_.lists)
      for (StateList::Group& group : list.groups)
        for (auto& states : group.members) states.resize(result_.slots.size(), no_tensor);
    std::ranges::sort(result_.buffers, {}, [](FlatBuffer const& one) {
      return std::tie(one.chain, one.group, one.where, one.number);
    });
    if (result_.distributed) check_dense();
    return std::move(result_);
  }

 private:
  /// The number of the group of ranks that a file's ranks belong to, in the order of torch_dist.
  Index group_of(Index chain) const {
    std::size_t const shard = shards_[file_];
    RESHARD_EXPECT(shard < at_.size() && at_[shard]);
    auto const along = [&](std::string_view axis) {
      return checkpoint_.shares.mesh.coordinate(*at_[shard], axis);
    };
    if (chain == 0) return along("pp") * sizes_.tp + along("tp");
    return (along("pp") * sizes_.ep + along("ep")) * sizes_.etp + along("etp");
  }

  void check_steps(std::optional<double> const& steps) {
    if (steps && steps_ && *steps != *steps_)
      fail(ErrorKind::source,
           "{}: the optimizer is at step {} here and at {} in other ranks. The files are of two "
           "saves: restore those of one.",
           where_, *steps, *steps_);
    if (steps) steps_ = steps;
  }

  void add_buffer(StateBuffer const& buffer) {
    FlatBuffer result{
        buffer.chain, group_of(buffer.chain), buffer.number, buffer.weights, where_, true, {}};
    result.buckets.push_back(places_of(
        buffer.states, fmt::format("optimizer {}, buffer {}, ", buffer.chain, buffer.number)));
    result_.buffers.push_back(std::move(result));
  }

  void add_group(StateGroup const& group) {
    if (result_.lists.empty() || result_.lists.back().where != where_ ||
        result_.lists.back().chain != group.chain)
      result_.lists.push_back({group.chain, group_of(group.chain), where_, {}});
    StateList::Group result{group.decays, group.decoupled, {}};
    for (auto const& member : group.members)
      result.members.push_back(
          places_of(member, fmt::format("optimizer {}, parameter {}, ", group.chain, number_++)));
    result_.lists.back().groups.push_back(std::move(result));
  }

  /// Adds tensors to the table, named by their content for messages.
  std::vector<std::size_t> places_of(std::vector<FileTensor> const& states, std::string const& of) {
    std::vector<std::size_t> places;
    for (FileTensor const& tensor : states) {
      std::size_t const slot = slot_number(tensor.name);
      places.resize(std::max(places.size(), slot + 1), no_tensor);
      places[slot] = checkpoint_.stored.tensors.size();
      checkpoint_.stored.add_whole(of + tensor.name, tensor.dtype, tensor.shape,
                                   {file_, tensor.offset_bytes, tensor.size_bytes}, tensor.strides);
    }
    return places;
  }

  std::size_t slot_number(std::string const& slot) {
    auto const at = std::ranges::find(result_.slots, slot) - result_.slots.begin();
    if (at == std::ssize(result_.slots)) result_.slots.push_back(slot);
    return static_cast<std::size_t>(at);
  }

  void complete(std::vector<std::size_t>& states, std::string const& where) const {
    states.resize(result_.slots.size(), no_tensor);
    auto const lacking = std::ranges::find(states, no_tensor);
    if (lacking == states.end()) return;
    fail(ErrorKind::source,
         "{}: a buffer lacks '{}', which other buffers have. The files are of two saves: restore "
         "those of one, or set source.optimizer = \"drop\".",
         where, result_.slots[static_cast<std::size_t>(lacking - states.begin())]);
  }

  /// Checks that every rank has dense weights; the model determines the stages with experts.
  void check_dense() const {
    for (Index group = 0; group < Index{sizes_.pp} * sizes_.tp; ++group)
      if (std::ranges::none_of(result_.buffers, [&](FlatBuffer const& one) {
            return one.chain == 0 && one.group == group;
          }))
        fail(ErrorKind::source,
             "{}: no {} holds the optimizer state of dense weights of tensor rank {} in pipeline "
             "rank {}. The save was interrupted, or files were moved: restore them, or set "
             "source.optimizer = \"drop\".",
             checkpoint_.place, distributed_file_name, group % sizes_.tp, group / sizes_.tp);
  }

  Checkpoint& checkpoint_;
  std::vector<std::size_t> const& shards_;
  MeshSizes sizes_;
  std::vector<std::optional<MeshPlace>> at_;  ///< by shard
  RankStates result_;
  std::uint32_t file_ = 0;
  std::string where_;
  std::optional<double> steps_;
  std::size_t number_ = 0;
};

}  // namespace

FilePaths distributed_files(Directory const& directory) {
  FilePaths files;
  for (Shard const& shard : directory.shards)
    if (std::ranges::binary_search(shard.files, distributed_file_name))
      files.push_back(shard.path / distributed_file_name);
  return files;
}

bool has_known_states(Directory const& directory) {
  if (!directory.optimizer_only.empty()) return false;
  for (Shard const& shard : directory.shards)
    for (std::string const& file : shard.files)
      if (file == "optim.pt" || file.starts_with("layer_wise_optimizer")) return false;
  return true;
}

void add_rank_states(Checkpoint& checkpoint, FileStates const& files,
                     std::vector<std::size_t> const& shards) {
  StateTable table(checkpoint, shards);
  for (std::size_t f = 0; f < files.number.size(); ++f) table.add(f, files.of(f), files.own[f]);
  auto states = std::make_shared<RankStates>(std::move(table).finish());
  if (states->settings.empty()) return;
  if (!states->slots.empty() && std::ranges::all_of(states->slots, is_master_slot))
    fail(ErrorKind::source,
         "{}: the optimizer has master weights and no moments: it was saved before its first "
         "step, and Megatron does not load such state. Set source.optimizer = \"drop\".",
         states->places.front());
  if (states->buffers.empty() && states->lists.empty())
    fail(ErrorKind::source,
         "{}: 'optimizer' has settings and no state, and no folder of the checkpoint has {}. The "
         "save was interrupted, or files were moved: restore them, or set source.optimizer = "
         "\"drop\".",
         states->places.front(), distributed_file_name);
  checkpoint.state.inventory.optimizer.form =
      states->distributed ? StateForm::in_buffers : StateForm::by_weight;
  checkpoint.state.inventory.slots = states->slots;
  checkpoint.state.rank_states = std::move(states);
}

}  // namespace reshard::megatron
