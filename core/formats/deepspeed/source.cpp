#include "core/formats/deepspeed/source.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "core/base/files/sight.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/deepspeed/folder.hpp"
#include "core/formats/deepspeed/run_state.hpp"
#include "core/formats/deepspeed/zero_table.hpp"
#include "core/formats/headers/shared_headers.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/targets/copied_files.hpp"

namespace reshard::deepspeed {
namespace {

namespace fs = std::filesystem;

/// Megatron's word for master weights of its distributed optimizer.
constexpr std::string_view megatron_master = "param";

/// Model files, then those with optimizer state; of a universal checkpoint its settings last.
std::vector<fs::path> files_in(Folder const& folder) {
  std::vector<fs::path> files;
  for (std::string const& name : folder.model_files) files.push_back(folder.folder / name);
  for (std::string const& name : folder.optimizer_files) files.push_back(folder.folder / name);
  fs::path const zero = folder.folder / universal_folder_name;
  for (Folder::Parameter const& parameter : folder.parameters)
    for (std::string const& name : parameter.files) files.push_back(zero / parameter.name / name);
  if (folder.universal) files.push_back(zero / universal_settings_name);
  return files;
}

HeaderBytes packed_header(File const& file) {
  std::string const name = file.path().filename().string();
  WireWriter out;
  out.number(file.size_bytes());
  if (name.ends_with("model_states.pt"))
    out.put(read_model_states(file));
  else if (name.ends_with("optim_states.pt"))
    out.put(read_optimizer_states(file));
  else if (name == universal_settings_name)
    out.put(read_universal_settings(file));
  else
    out.put(read_universal_file(file, file.path().stem().string()));
  return {std::move(out).take(), {}};
}

Headers unpacked(Folder const& folder, SharedHeaders const& packed) {
  Headers headers;
  for (std::size_t f = 0; f < packed.size(); ++f) {
    WireReader in(packed.own(f), "the header of a DeepSpeed file");
    headers.file_bytes.push_back(in.number());
    if (f < folder.model_files.size())
      headers.models.push_back(in.get<ModelStates>());
    else if (folder.universal && f + 1 == packed.size())
      headers.settings = in.get<OptimizerStates>();
    else
      headers.optimizers.push_back(in.get<OptimizerStates>());
    in.finish();
  }
  return headers;
}

/// Refuses files that are copies of one rank's: each rank has its own part of the optimizer state.
void refuse_copies(Folder const& folder, Headers const& headers, Checkpoint const& checkpoint) {
  if (folder.universal || headers.optimizers.empty() ||
      headers.optimizers.front().ranks != std::ssize(headers.optimizers))
    return;
  DifferentFiles files(headers.optimizers.size());
  std::iota(files.begin(), files.end(), narrow<std::uint32_t>(folder.model_files.size()));
  refuse_copied_files(checkpoint, std::array{std::move(files)});
}

std::string form_of(RunState const& run) {
  if (run.universal) return fmt::format("universal checkpoint");
  return run.stage == 0 ? "no ZeRO" : fmt::format("ZeRO stage {}", run.stage);
}

/// The possible uses of a checkpoint, for `inspect`.
std::string uses_of(Checkpoint const& checkpoint) {
  bool const state = !checkpoint.stored.tensors.empty() &&
                     std::ranges::any_of(checkpoint.stored.tensors, [](StoredTensor const& tensor) {
                       return parse_state_name(tensor.name).has_value();
                     });
  if (!state)
    return "weights: huggingface, dcp, hdf5, deepspeed; with the model's config.json every format";
  return "weights and optimizer: dcp, hdf5, a universal checkpoint (deepspeed); with the model's "
         "config.json torch_dist, megatron and fsdp_dtensor. Only weights: huggingface, mistral";
}

}  // namespace

FormatWords DeepSpeedFormat::words() const {
  return {.help = "universal checkpoint",
          .sign = "latest or *_states.pt (DeepSpeed)",
          .remains = {"zero_to_fp32.py"},
          .own = {latest_name, latest_universal_name, "zero_to_torch.py"}};
}

bool DeepSpeedFormat::probe(fs::path const& path) const { return looks_like_deepspeed(path); }

std::string DeepSpeedFormat::why_incomplete(fs::path const& path) const {
  if (!sees_folder(path) || !sees_anything(path / "zero_to_fp32.py")) return "";
  if (sees_file(path / latest_name) || sees_file(path / latest_universal_name)) return "";
  return fmt::format("has no '{}', which is written last", latest_name);
}

Checkpoint DeepSpeedFormat::open(fs::path const& path, OpenChoice const& choice,
                                 HeaderExchange const& exchange) const {
  Checkpoint checkpoint;
  checkpoint.format = this;
  checkpoint.storage = Storage::chunks;
  Folder folder;
  exchange.together_seeing([&] {
    folder = open_folder(path);
    checkpoint.files = files_in(folder);
  });
  checkpoint.root = folder.root;
  checkpoint.folder = folder.folder;
  checkpoint.place = folder.folder.string();
  auto const packed = shared_headers(checkpoint, exchange, packed_header);
  exchange.together([&] {
    Headers const headers = unpacked(folder, packed);
    fill_checkpoint(folder, headers, checkpoint);
    if (choice.compare_files) refuse_copies(folder, headers, checkpoint);
    RunState const& run = *checkpoint.state.deepspeed;
    checkpoint.run.iteration = run.steps;
    checkpoint.run.stated_iteration = run.steps;
    checkpoint.state.inventory.others = headers.models.front().others;
    if (headers.models.front().has_optimizer)
      checkpoint.state.inventory.optimizer = {
          StateForm::by_layout, folder.model_files.front(),
          fmt::format("{} holds the optimizer state of a run without ZeRO under numbers, and no "
                      "file tells which parameters have them: save with ZeRO stage 1, 2 or 3",
                      folder.model_files.front())};
    if (run.scales_loss)
      checkpoint.warnings.push_back(
          "the loss scale of the FP16 run is not converted: training starts with the one in "
          "its own configuration");
    checkpoint.summary = fmt::format("{}, {}, {}", form_of(run), counted(run.ranks, "rank"),
                                     counted(checkpoint.files.size(), "file"));
  });
  return checkpoint;
}

Inspection DeepSpeedFormat::describe(fs::path const& path,
                                     megatron::UserSizes const& /*sizes*/) const {
  Checkpoint checkpoint = open(path, {}, LoneReader());
  RunState const& run = *checkpoint.state.deepspeed;
  StoredView const view = view_of(checkpoint);
  std::map<std::string, std::int64_t> dtypes;
  for (auto const& [name, at] : view.weights) {
    auto const rounded = checkpoint.stored.rounded.find(at);
    ++dtypes[std::string(reshard::name(rounded == checkpoint.stored.rounded.end()
                                           ? checkpoint.stored.tensors.dtype(at)
                                           : rounded->second))];
  }
  std::string dtypes_text;
  Json dtypes_json = Json::object();
  for (auto const& [dtype, tensors] : dtypes) {
    dtypes_text +=
        fmt::format("{}{}: {}", dtypes_text.empty() ? "" : "; ", dtype, counted(tensors, "tensor"));
    dtypes_json.set(dtype, tensors);
  }
  std::vector<std::string> slots;
  for (StoredTensor const& tensor : checkpoint.stored.tensors)
    if (auto const state = parse_state_name(tensor.name))
      if (std::ranges::find(slots, state->slot) == slots.end()) slots.emplace_back(state->slot);
  std::ranges::sort(slots);
  auto const array = [](std::vector<std::string> const& list) {
    return Json(Json::Array(list.begin(), list.end()));
  };
  std::string const version = run.version.empty() ? "before 0.3.17" : run.version;
  HeldState const& unnamed = checkpoint.state.inventory.optimizer;
  if (unnamed) checkpoint.warnings.push_back(unnamed.fault + "; or drop optimizer state");
  Inspection result;
  result.json.set("path", path.string())
      .set("format", name())
      .set("form", run.universal ? "universal" : "zero")
      .set("zero_stage", run.stage)
      .set("data_parallel_size", run.ranks)
      .set("deepspeed_version", version);
  result.json.set("global_steps", run.steps)
      .set("weights", dtypes_json)
      .set("optimizer_slots", array(slots))
      .set("can_become", uses_of(checkpoint))
      .set("mismatches", array({}))
      .set("notes", array(checkpoint.warnings));
  result.text = fmt::format(
      "path              {}\nformat            {}\nform              {}{}\nwritten by        "
      "DeepSpeed {}\nranks             {} (data parallel)\nstep              {}\nweights           "
      "{}\noptimizer         {}\ncan become        {}\n",
      path.string(), name(), form_of(run),
      run.universal && run.stage > 0 ? fmt::format(" of stage {}", run.stage) : "", version,
      run.ranks, run.steps, dtypes_text,
      unnamed         ? "under numbers without names; can only be dropped"
      : slots.empty() ? "none"
                      : listed(slots),
      uses_of(checkpoint));
  result.notes = checkpoint.warnings;
  result.folder = checkpoint.folder;
  return result;
}

StoredView DeepSpeedFormat::view(Checkpoint const& checkpoint, std::string const& prefix) const {
  StoredView view;
  auto const& tensors = checkpoint.stored.tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    auto const state = parse_state_name(tensors.name(t));
    std::string_view const name = state ? state->parameter : tensors.name(t).text();
    if (!name.starts_with(prefix)) {
      view.unread.push_back(tensors.name(t));
      continue;
    }
    std::string key(name.substr(prefix.size()));
    if (!state) {
      view.weights.emplace(std::move(key), t);
      continue;
    }
    std::string const slot(state->slot == master_word ? megatron_master : state->slot);
    auto const at =
        static_cast<std::size_t>(std::ranges::find(view.states, slot) - view.states.begin());
    if (at == view.states.size()) {
      view.states.push_back(slot);
      view.state_tables.emplace_back();
    }
    view.state_tables[at].emplace(std::move(key), t);
  }
  return view;
}

StateInventory DeepSpeedFormat::inventory(Checkpoint const& checkpoint,
                                          StoredView const& view) const {
  StateInventory result = checkpoint.state.inventory;
  result.slots = view.states;
  if (!view.states.empty()) result.optimizer = {StateForm::by_weight, view.states.front()};
  return result;
}

std::optional<RunRecord> DeepSpeedFormat::run_record(Checkpoint const& checkpoint) const {
  RunRecord record = empty_record(checkpoint.state.deepspeed->model_file.string(),
                                  checkpoint.run.stated_iteration);
  record.samples = checkpoint.state.deepspeed->samples;
  return record;
}

std::vector<std::pair<std::string, std::string>> DeepSpeedFormat::made_objects(
    Checkpoint const& checkpoint) const {
  return settings_by_parameter(checkpoint.state.deepspeed->optimizer, checkpoint.place);
}

/// Hugging Face's Trainer writes config.json next to `latest`.
std::optional<huggingface::Folder> DeepSpeedFormat::model_files(
    Checkpoint const& checkpoint) const {
  if (auto carried = carried_in(checkpoint.folder, checkpoint.root)) return carried;
  for (fs::path const& folder :
       {checkpoint.folder, checkpoint.root, checkpoint.folder.parent_path()})
    if (auto beside = model_files_beside(folder)) return beside;
  return std::nullopt;
}

}  // namespace reshard::deepspeed
