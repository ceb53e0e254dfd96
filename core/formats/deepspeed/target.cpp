#include <algorithm>
#include <array>
#include <set>

#include "core/base/text/text.hpp"
#include "core/formats/deepspeed/made_run.hpp"
#include "core/formats/deepspeed/rank_header.hpp"
#include "core/formats/deepspeed/run_state.hpp"
#include "core/formats/deepspeed/source.hpp"
#include "core/formats/deepspeed/universal.hpp"
#include "core/formats/deepspeed/zero_table.hpp"
#include "core/formats/huggingface/reference_weights.hpp"
#include "core/formats/megatron/state/rank_settings.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/targets/target_job.hpp"
#include "core/formats/targets/target_parts.hpp"
#include "core/plan/equal/state_checks.hpp"

namespace reshard::deepspeed {
namespace {

using pickle::Document;
using pickle::NodeId;

/// Keys of model states that are written anew, or belong to one rank.
constexpr std::array left_out_keys = {"module", "optimizer", "frozen_param_fragments"};
constexpr std::string_view first_moment = "exp_avg";
constexpr std::string_view second_moment = "exp_avg_sq";

bool holds_moments(std::vector<UniversalTensor> const& tensors) {
  return std::ranges::any_of(tensors, [](UniversalTensor const& one) {
    return !one.slot.empty() && one.slot != step_slot && one.slot != master_word;
  });
}

/// The run of a DeepSpeed source: its groups, steps, counters, and what the training program added.
class OwnRun {
 public:
  OwnRun(NamedTarget const& job, std::vector<UniversalTensor> const& tensors)
      : job_(job), state_(*job.source.state.deepspeed), tensors_(tensors) {}

  UniversalRun make(TargetDraft& draft) {
    UniversalRun run;
    run.iteration = state_.steps;
    run.version = state_.version.empty() ? std::string(oldest_version) : state_.version;
    run.second_names = state_.second_names;
    bool const without = job_.request.read.drop_optimizer || state_.optimizer.settings.empty();
    if (without && !holds_moments(tensors_))
      set_fresh(run, tensors_);
    else
      set_optimizer(run);
    TorchFile const source = read_torch_file(File::open_for_reading(state_.model_file));
    auto states = std::make_shared<Document>(carried(source.document));
    run.add_states = [states](Document& document) {
      for (auto const& [key, value] : states->members(states->root))
        document.set(document.root, key, document.add_copy(*states, value));
    };
    if (!lost_.empty())
      draft.warnings.push_back("dropped, because they are not plain values: " +
                               listed(std::vector<std::string>(lost_.begin(), lost_.end()), 6));
    return run;
  }

 private:
  void set_optimizer(UniversalRun& run) const {
    bool const groups = !state_.optimizer.settings.empty();
    if (!groups || !state_.optimizer.steps)
      fail(ErrorKind::source,
           "{}: does not state the {} of its optimizer, which DeepSpeed's universal checkpoints "
           "need. {} Choose dcp as the target's format.",
           job_.source.place, groups ? "steps" : "parameter groups",
           groups ? "Optimizers that count none, such as SGD, have no universal form."
                  : "Saves with elastic_checkpoint have none.");
    run.groups = settings_of(state_.optimizer);
    run.steps = state_.optimizer.steps;
    run.tensor_steps = state_.tensor_steps;
  }

  Document carried(Document const& source) {
    Document document;
    document.root = document.add_dict();
    for (auto const& [key, value] : source.members(source.root)) {
      if (std::ranges::find(left_out_keys, key) != left_out_keys.end()) continue;
      Document trial;
      trial.root = trial.add_copy(source, value);
      if (!trial.tensors.empty() ||
          !may_be_carried(pickle::not_to_carry(source, value), job_.request.read.foreign_classes)) {
        lost_.insert(key);
        continue;
      }
      document.set(document.root, key, document.add_copy(source, value));
    }
    return document;
  }

  NamedTarget const& job_;
  RunState const& state_;
  std::vector<UniversalTensor> const& tensors_;
  std::set<std::string> lost_;
};

/// Tensors of a model with the names of its family.
class MappedTensors {
 public:
  MappedTensors(MappedTarget const& job, TargetDraft& draft)
      : job_(job),
        draft_(draft),
        reference_(job.read.facts.reference,
                   job.read.changed ? job.read.changed->layers : std::vector<Index>()),
        side_(job.model, *job.read.names.maps.family, options()),
        parts_{&job.model, &side_, job.dtypes, &job.request} {}

  void run() {
    if (!job_.model.schemes().empty() && find_part())
      fail(ErrorKind::usage,
           "[target] format = \"deepspeed\": '{}' is quantised, and DeepSpeed trains F32 master "
           "weights. Write the model as huggingface with model.quant = \"dequantise-bf16\" first, "
           "and convert that.",
           *find_part());
    draft_.target_adds = side_.adds();
    check_adds();
    for (StoredName const& name : side_.names(nullptr)) add(name);
    for (auto const& name : second_names_) run_.second_names.push_back(name);
    set_run();
    lay_out_universal(draft_, tensors_, run_, [this](std::size_t t) {
      std::vector<Piece> pieces = side_.pieces(stored_[t].first, {});
      for (Piece& piece : pieces)
        piece.tensor = job_.model.in_slot(piece.tensor, stored_[t].second);
      return pieces;
    });
    if (!run_.weights_alone)
      draft_.master_slot = own_master;
    else
      for (std::size_t t = 0; t < tensors_.size(); ++t)
        for (TensorId const tensor : side_.tensors(stored_[t].first.entry))
          if (!tensors_[t].slot.empty())
            draft_.unseen.push_back(job_.model.in_slot(tensor, stored_[t].second));
    add_model_files();
  }

 private:
  /// The word for master weights that readers of the target have.
  static constexpr std::string_view own_master = "param";

  /// Names of parameters: transformers 5 has the experts of a layer in one.
  SideOptions options() {
    SideOptions options;
    options.has = [this](std::string_view name) {
      return name.ends_with("experts.gate_up_proj") || reference_.has(name);
    };
    return options;
  }

  std::optional<std::string> find_part() const {
    for (StoredName const& name : side_.names(nullptr))
      if (!side_.part(name.entry).empty()) return name.name;
    return std::nullopt;
  }

  /// Masters have the values of their weights.
  void check_adds() const {
    for (std::size_t t = 0; t < draft_.target_adds.size(); ++t)
      if (job_.model.exists(TensorId(t)) &&
          add_of(job_.read.stored.adds, TensorId(t)) != add_of(draft_.target_adds, TensorId(t)))
        fail(ErrorKind::usage,
             "[target] format = \"deepspeed\": '{}' is stored without its one on one side of the "
             "job, and its master weight would have to change with it, which this version does "
             "not do. Convert the weights to huggingface first, and that to this format.",
             job_.model.tensor(TensorId(t)).name);
  }

  bool has_slot(StoredName const& name, SlotId slot) const {
    return std::ranges::all_of(side_.tensors(name.entry), [&](TensorId tensor) {
      return job_.model.exists(job_.model.in_slot(tensor, slot));
    });
  }

  void add(StoredName const& name) {
    if (std::string_view(name.name).find("block_sparse_moe.experts.gate_up_proj") !=
        std::string_view::npos)
      fail(ErrorKind::usage,
           "[target] format = \"deepspeed\": transformers 5 has the experts of this family in one "
           "tensor below 'mlp', a name that its map does not have ('{}'). Choose huggingface, "
           "and begin with its weights in DeepSpeed.",
           name.name);
    add_tensor(name, SlotId::weight, "");
    if (name.copy) return second_names_.push_back(name.name);
    auto const& slots = job_.model.slots();
    bool master = false;
    bool moment = false;
    for (std::size_t s = 1; s < slots.size(); ++s) {
      if (!has_slot(name, SlotId(s))) continue;
      bool const of_master = is_master_slot(slots[s]);
      if (!of_master && slots[s] != first_moment && slots[s] != second_moment)
        fail(ErrorKind::source,
             "{}: '{}' has the optimizer state {}, and a universal checkpoint is made of Adam's "
             "(exp_avg, exp_avg_sq). Set source.optimizer = \"drop\" to continue without it.",
             job_.source.place, name.name, slots[s]);
      master = master || of_master;
      moment = moment || !of_master;
      add_tensor(name, SlotId(s), of_master ? master_word : std::string_view(slots[s]));
    }
    if (moment && !master) add_own_master(name);
  }

  /// The optimizer of F32 weights steps them themselves.
  void add_own_master(StoredName const& name) {
    DType const dtype = stored_dtype(parts_, name);
    if (dtype != DType::f32)
      fail(ErrorKind::source,
           "{}: '{}' is {} and has optimizer state, but no F32 master weight, which DeepSpeed's "
           "optimizers need: the run trained only in {}. Set source.optimizer = \"drop\" to "
           "continue without it.",
           job_.source.place, name.name, reshard::name(dtype), reshard::name(dtype));
    add_tensor(name, SlotId::weight, master_word);
    for (TensorId const tensor : side_.tensors(name.entry)) draft_.own_masters.push_back(tensor);
  }

  void add_tensor(StoredName const& name, SlotId slot, std::string_view word) {
    SharedText const key = word.empty() ? name.name : state_name(name.name, word);
    tensors_.push_back({name.name, std::string(word), key, stored_dtype(parts_, name, slot),
                        side_.layout(name.entry, {}).file_shape});
    stored_.emplace_back(name, slot);
  }

  void set_run() {
    run_.version = oldest_version;
    std::int64_t samples = 0;
    if (job_.record != nullptr) {
      run_.iteration = job_.record->iteration;
      Json const seen = fact(job_.read.facts.args, "consumed_train_samples");
      samples = seen.integer() != nullptr ? *seen.integer() : job_.record->samples;
    }
    if (!holds_moments(tensors_))
      set_fresh(run_, tensors_);
    else
      set_settings();
    set_made_states(run_, tensors_, samples);
  }

  void set_settings() {
    if (job_.source.state.torch_optimizer)
      return set_common_settings(run_, *job_.source.state.torch_optimizer, tensors_,
                                 job_.source.place, draft_.warnings);
    if (job_.record == nullptr || job_.source.names == NameOwner::family)
      refuse_without_settings(job_.source.place);
    auto const settings = megatron::optimizer_settings(job_.source, *job_.record, false, true);
    set_common_settings(run_, settings, tensors_, job_.record->file, draft_.warnings);
  }

  void add_model_files() {
    std::optional<huggingface::Folder> files = job_.read.facts.reference;
    if (!files && !job_.read.facts.config_text.empty()) {
      files.emplace();
      files->config_text = job_.read.facts.config_text;
      files->config = huggingface::parse_config(files->config_text, huggingface::config_name);
    }
    if (!files) return;
    if (!job_.read.facts.config_changes.empty())
      files->config_text = huggingface::patched_config_text(
          std::move(files->config_text), job_.read.facts.config_changes, huggingface::config_name);
    add_carried(draft_, files);
  }

  MappedTarget const& job_;
  TargetDraft& draft_;
  huggingface::ReferenceWeights reference_;
  Side side_;
  TargetParts parts_;
  UniversalRun run_;
  std::vector<UniversalTensor> tensors_;
  std::vector<std::pair<StoredName, SlotId>> stored_;  ///< parallel to tensors_
  std::vector<std::string> second_names_;
};

}  // namespace

TargetTraits DeepSpeedFormat::target() const {
  return {.names = NameOwner::family,
          .storage = Storage::whole,
          .any_names = true,
          .objects = true,
          .carries_state = true,
          .rank_states = true,
          .needs_masters = true};
}

void DeepSpeedFormat::lay_out(MappedTarget const& job, TargetDraft& draft) const {
  MappedTensors(job, draft).run();
}

void DeepSpeedFormat::lay_out_named(NamedTarget const& job, TargetDraft& draft) const {
  std::vector<UniversalTensor> tensors;
  for (NamedTensor const& one : job.tensors) {
    auto const state = parse_state_name(one.key);
    tensors.push_back({state ? SharedText(state->parameter) : one.key,
                       state ? std::string(state->slot) : "", one.key, one.dtype, one.shape});
  }
  UniversalRun run;
  if (job.source.state.deepspeed) {
    run = OwnRun(job, tensors).make(draft);
  } else {
    run.version = oldest_version;
    run.iteration = job.source.run.stated_iteration;
    if (!holds_moments(tensors))
      set_fresh(run, tensors);
    else if (job.source.state.torch_optimizer)
      set_common_settings(run, *job.source.state.torch_optimizer, tensors, job.source.place,
                          draft.warnings);
    else
      refuse_without_settings(job.source.place);
    if (run.iteration == 0) run.iteration = static_cast<std::int64_t>(*run.steps);
    set_made_states(run, tensors, 0);
  }
  for (std::size_t t = 0; run.weights_alone && t < tensors.size(); ++t)
    if (!tensors[t].slot.empty()) draft.unseen.push_back(TensorId(t));
  lay_out_universal(draft, tensors, run, [&job](std::size_t t) {
    std::vector<Index> const& shape = job.tensors[t].shape;
    TensorBox const box{std::vector<Index>(shape.size(), 0), shape};
    return std::vector<Piece>{job.piece(t, box, row_major(box))};
  });
  if (auto const files = files_of(job.source)) add_carried(draft, files);
}

}  // namespace reshard::deepspeed
