#include "core/formats/fsdp_ranks/source.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "core/base/files/paths.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/saves.hpp"
#include "core/formats/dcp/keys.hpp"
#include "core/formats/fsdp_ranks/flat_states.hpp"
#include "core/formats/fsdp_ranks/named_states.hpp"
#include "core/formats/headers/shared_headers.hpp"
#include "core/formats/inspect_lines.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/run/torch_optimizer.hpp"

namespace reshard::fsdp_ranks {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_shown = 6;

HeaderBytes packed_header(File const& file) {
  RankHeader const header = read_rank_header(file);
  WireWriter own;
  WireWriter common;
  own.put(header);
  common.put(header.form);
  return {std::move(own).take(), std::make_shared<std::string const>(std::move(common).take())};
}

/// Files [first, +count).
RankFiles unpacked(SharedHeaders const& packed, std::size_t first, std::size_t count) {
  RankFiles result;
  result.first_file = narrow<std::uint32_t>(first);
  std::map<std::uint32_t, std::size_t> known;
  for (std::size_t f = first; f < first + count; ++f) {
    std::uint32_t const common = packed.common_of(f);
    auto const [form, is_new] = known.try_emplace(common, result.forms.size());
    if (is_new)
      result.forms.push_back(
          WireReader(packed.commons()[common], "the form of a rank's file").all<FileForm>());
    result.form_of.push_back(form->second);
    result.ranks.push_back(
        WireReader(packed.own(f), "the header of a rank's file").all<RankHeader>());
  }
  return result;
}

/// Fills the table of a checkpoint.
class Builder {
 public:
  Builder(Folder const& folder, SharedHeaders const& packed, Checkpoint& checkpoint)
      : folder_(folder),
        model_(unpacked(packed, 0, folder.models.size())),
        optimizer_(unpacked(packed, folder.models.size(), folder.optimizers.size())),
        checkpoint_(checkpoint) {}

  void fill(bool compare) {
    std::vector<RankTensor> const weights = tensors_of(model_, checkpoint_);
    if (compare) refuse_unequal_replicas(weights, model_, checkpoint_);
    for (RankTensor const& one : weights) add_tensor(one, one.form->name, model_, checkpoint_);
    add_records(model_, checkpoint_);
    for (FileForm const& form : model_.forms)
      for (std::string const& key : form.others) note_other(key);
    if (!folder_.optimizers.empty()) add_optimizer(weights, compare);
    add_extra();
  }

 private:
  void note_other(std::string const& key) {
    auto& others = checkpoint_.state.inventory.others;
    if (std::ranges::find(others, key) == others.end()) others.push_back(key);
  }

  void add_optimizer(std::vector<RankTensor> const& weights, bool compare) {
    check_steps();
    if (has_flat_states(optimizer_, weights)) return add_flat(weights);
    std::vector<RankTensor> const states = tensors_of(optimizer_, checkpoint_);
    StateNames const names = names_of_states(optimizer_, states, model_, weights);
    if (!names.fault.empty()) return refuse_optimizer(names.fault);
    if (compare) refuse_unequal_replicas(states, optimizer_, checkpoint_);
    for (RankTensor const& one : states) {
      auto const [key, slot] = parts_of_state(one.form->name);
      std::string name = fmt::format("optimizer.state.{}.{}", names.name_of.at(key), slot);
      if (slot == "step")
        add_first(one, std::move(name), optimizer_, checkpoint_);
      else
        add_tensor(one, std::move(name), optimizer_, checkpoint_);
    }
    add_records(optimizer_, checkpoint_);
    std::vector<std::vector<std::string>> members;
    for (auto const& group : optimizer_.form(0).members) {
      members.emplace_back();
      for (std::string const& key : group) members.back().push_back(names.name_of.at(key));
    }
    note_settings(std::move(members));
  }

  void add_flat(std::vector<RankTensor> const& weights) {
    auto const flat = flat_weights(optimizer_, model_, weights);
    if (!flat)
      return refuse_optimizer(
          "the optimizer state of FSDP1 is in flat vectors, whose sizes are not those of the "
          "model's blocks and of the rest, and no file tells which elements are of which weight. "
          "Train with FSDP2 (verl: strategy: fsdp2), or save with FSDP.optim_state_dict and "
          "torch.distributed.checkpoint");
    std::vector<std::vector<std::string>> members(1);
    for (FlatWeight const& one : *flat) members.front().push_back(one.weight->form->name);
    add_flat_states(*flat, optimizer_, checkpoint_);
    checkpoint_.warnings.push_back(
        "the optimizer state of FSDP1 does not say which weights it is of: it is taken that the "
        "blocks of the model were wrapped, and the sizes of all vectors agree with that");
    add_records(optimizer_, checkpoint_);
    note_settings(std::move(members));
  }

  void refuse_optimizer(std::string fault) {
    checkpoint_.state.inventory.optimizer = {
        StateForm::by_layout, folder_.optimizers.front().filename().string(), std::move(fault)};
  }

  void check_steps() const {
    for (std::size_t rank = 1; rank < optimizer_.ranks.size(); ++rank) {
      auto const& first = optimizer_.ranks.front().steps;
      auto const& steps = optimizer_.ranks[rank].steps;
      if (first && steps && *first != *steps)
        fail(ErrorKind::source,
             "{}: its optimizer has done {} steps, and that of {} {}. The files are of two saves: "
             "restore those of one.",
             folder_.optimizers[rank].string(), *steps, folder_.optimizers.front().string(),
             *first);
    }
  }

  void note_settings(std::vector<std::vector<std::string>> members) {
    auto optimizer = std::make_shared<TorchOptimizer>();
    optimizer->settings = optimizer_.form(0).settings;
    optimizer->members = std::move(members);
    optimizer->steps = optimizer_.ranks.front().steps;
    optimizer->fault = optimizer_.ranks.front().fault;
    checkpoint_.state.torch_optimizer = std::move(optimizer);
  }

  void add_extra() {
    if (folder_.extra.empty()) return;
    checkpoint_.state.inventory.rng = {StateForm::in_rank_files, folder_.extra};
    note_other("lr_scheduler of extra_state_*.pt");
  }

  Folder const& folder_;
  RankFiles model_;
  RankFiles optimizer_;
  Checkpoint& checkpoint_;
};

/// "global_step_10/actor", "checkpoint-10": the step of the save.
std::optional<std::int64_t> step_of(fs::path const& folder) {
  fs::path at = full_path(folder);
  for (int level = 0; level < 2 && at.has_relative_path(); ++level, at = at.parent_path()) {
    std::string const name = at.filename().string();
    if (!name.starts_with("global_step") && !name.starts_with("checkpoint-")) continue;
    if (auto const step = step_of_folder(name)) return step->iteration;
  }
  return std::nullopt;
}

std::string optimizer_text(Checkpoint const& checkpoint, StateInventory const& state) {
  if (!state.optimizer) return "none";
  if (state.optimizer.form != StateForm::by_weight)
    return fmt::format("in {}; can only be dropped", state.optimizer.example);
  std::string text = listed(state.slots);
  if (checkpoint.state.torch_optimizer && checkpoint.state.torch_optimizer->steps)
    text += fmt::format(", after {} steps", *checkpoint.state.torch_optimizer->steps);
  return text;
}

Json array_of(std::vector<std::string> const& list) {
  return Json(Json::Array(list.begin(), list.end()));
}

}  // namespace

FormatWords FsdpRanksFormat::words() const {
  return {.help = "FSDP, one file a rank",
          .sign = "model_world_size_*_rank_*.pt (FSDP)",
          .remains = {"model_world_size_*.pt", "optim*_world_size_*.pt"},
          .own = {config_name, "extra_state_world_size_*.pt"}};
}

bool FsdpRanksFormat::probe(fs::path const& path) const { return looks_like_rank_files(path); }

Checkpoint FsdpRanksFormat::open(fs::path const& path, OpenChoice const& choice,
                                 HeaderExchange const& exchange) const {
  Checkpoint checkpoint;
  checkpoint.format = this;
  checkpoint.storage = Storage::chunks;
  Folder folder;
  exchange.together_seeing([&] {
    folder = open_folder(path);
    checkpoint.files = folder.models;
    checkpoint.files.add(folder.optimizers);
  });
  checkpoint.root = checkpoint.folder = path;
  checkpoint.place = path.string();
  SharedHeaders const packed = shared_headers(checkpoint, exchange, packed_header);
  exchange.together([&] {
    Builder(folder, packed, checkpoint).fill(choice.compare_files);
    checkpoint.run.iteration = step_of(path);
    if (checkpoint.run.iteration)
      checkpoint.run.stated_iteration = *checkpoint.run.iteration;
    else if (checkpoint.state.torch_optimizer)
      checkpoint.run.stated_iteration = whole_steps(*checkpoint.state.torch_optimizer);
    checkpoint.summary = fmt::format(
        "{}{}, {}", folder.fsdp_version == 0 ? "FSDP" : fmt::format("FSDP{}", folder.fsdp_version),
        fmt::format(" of {}", counted(folder.world, "rank")),
        counted(checkpoint.files.size(), "file"));
  });
  return checkpoint;
}

Inspection FsdpRanksFormat::describe(fs::path const& path,
                                     megatron::UserSizes const& /*sizes*/) const {
  Checkpoint const checkpoint = open(path, {}, LoneReader());
  StoredView const view = view_of(checkpoint);
  StateInventory const state = inventory(checkpoint, view);
  std::map<std::string, std::int64_t> dtypes;
  std::int64_t elements = 0;
  for (auto const& [name, at] : view.weights) {
    StoredTensor const& tensor = checkpoint.stored.tensors[at];
    ++dtypes[std::string(reshard::name(tensor.dtype))];
    elements += checked_volume(tensor.shape, ErrorKind::source, name);
  }
  std::string dtypes_text;
  Json dtypes_json = Json::object();
  for (auto const& [dtype, tensors] : dtypes) {
    dtypes_text +=
        fmt::format("{}{}: {}", dtypes_text.empty() ? "" : "; ", dtype, counted(tensors, "tensor"));
    dtypes_json.set(dtype, tensors);
  }
  std::vector<std::string> notes = checkpoint.warnings;
  if (!state.optimizer.fault.empty())
    notes.push_back(state.optimizer.fault + "; or drop optimizer state");
  Inspection result;
  result.json.set("path", path.string())
      .set("format", name())
      .set("form", checkpoint.summary)
      .set("weights", dtypes_json)
      .set("elements", elements)
      .set("optimizer_slots", array_of(state.slots));
  if (checkpoint.run.iteration) result.json.set("step", *checkpoint.run.iteration);
  result.json.set("mismatches", array_of({})).set("notes", array_of(notes));
  result.text = inspect_line("path", path.string()) + inspect_line("format", name()) +
                inspect_line("form", checkpoint.summary);
  if (checkpoint.run.iteration)
    result.text += inspect_line("step", std::to_string(*checkpoint.run.iteration));
  result.text +=
      inspect_line("weights", dtypes_text) + inspect_line("elements", std::to_string(elements)) +
      inspect_line("optimizer", optimizer_text(checkpoint, state)) +
      inspect_line("other state",
                   !state.others.empty() || state.rng ? listed(state.others, most_shown) : "none");
  result.notes = std::move(notes);
  result.folder = checkpoint.folder;
  return result;
}

StoredView FsdpRanksFormat::view(Checkpoint const& checkpoint, std::string const& prefix) const {
  return dcp::sorted_keys(checkpoint, prefix);
}

StateInventory FsdpRanksFormat::inventory(Checkpoint const& checkpoint,
                                          StoredView const& view) const {
  return dcp::named_inventory(checkpoint, view);
}

std::optional<RunRecord> FsdpRanksFormat::run_record(Checkpoint const& checkpoint) const {
  return empty_record(checkpoint.files.front().string(), checkpoint.run.stated_iteration);
}

std::vector<std::pair<std::string, std::string>> FsdpRanksFormat::made_objects(
    Checkpoint const& checkpoint) const {
  if (checkpoint.state.torch_optimizer == nullptr) return {};
  return settings_by_parameter(*checkpoint.state.torch_optimizer, checkpoint.place);
}

std::optional<huggingface::Folder> FsdpRanksFormat::model_files(
    Checkpoint const& checkpoint) const {
  if (auto carried = carried_in(checkpoint.folder, checkpoint.root)) return carried;
  return model_files_beside(checkpoint.folder);
}

}  // namespace reshard::fsdp_ranks
