#include "core/formats/torch_dist/formats.hpp"

#include "core/formats/model_files.hpp"
#include "core/formats/torch_dist/dist_files.hpp"
#include "core/formats/torch_dist/fsdp_record.hpp"
#include "core/formats/torch_dist/keys.hpp"
#include "core/formats/torch_dist/state/flat_keys.hpp"
#include "core/formats/torch_dist/state/flat_state.hpp"
#include "core/formats/torch_dist/state/gathered_state.hpp"

namespace reshard::dcp {
namespace {

/// The record of the source's run, for a target that keeps its keys; nullopt if there is none.
std::optional<RunRecord> kept_record(NamedTarget const& job, TargetDraft& draft) {
  std::optional<RunRecord> found = job.source.format->run_record(job.source);
  if (found) settle_foreign_classes(*found, job.request.read.foreign_classes, draft.warnings);
  return found;
}

}  // namespace

std::shared_ptr<CommonState const> MegatronDcp::made_common(Checkpoint const& checkpoint) const {
  return read_fsdp_common(checkpoint);
}

StateInventory MegatronDcp::inventory(Checkpoint const& checkpoint, StoredView const& view) const {
  StateInventory result;
  result.slots = view.states;
  if (!view.states.empty())
    result.optimizer = {view.buffers.empty() ? StateForm::by_weight : StateForm::in_buffers,
                        view.states.front()};
  if (has_gathered_states(checkpoint) && !result.optimizer)
    result.optimizer = {StateForm::in_buffers, std::string(gathered_name)};
  if (!view.fixed_state.empty())
    result.optimizer = {StateForm::by_layout, view.fixed_state.front(), view.state_fault};
  for (StoredObject const& object : checkpoint.stored.objects)
    if (is_run_state(object.name) && !result.rng) result.rng = {StateForm::by_layout, object.name};
  for (StoredTensor const& tensor : checkpoint.stored.tensors)
    if (!result.rng && is_run_state(tensor.name.text()))
      result.rng = {StateForm::by_layout, tensor.name};
  if (!result.optimizer) result.optimizer = checkpoint.state.inventory.optimizer;
  if (!result.rng) result.rng = checkpoint.state.inventory.rng;
  return result;
}

FormatWords TorchDistFormat::words() const {
  FormatWords words = DcpFormat::words();
  words.help = "Megatron-Core";
  return words;
}

std::shared_ptr<CommonState const> TorchDistFormat::stored_common(Directory const& directory,
                                                                  Metadata const& metadata) const {
  auto found = read_common(directory, metadata);
  return found ? std::make_shared<CommonState const>(std::move(*found)) : nullptr;
}

void TorchDistFormat::add_states(Checkpoint& checkpoint, StampedFiles& files,
                                 HeaderExchange const& exchange) const {
  add_gathered_states(checkpoint, files, exchange);
}

StoredView TorchDistFormat::view(Checkpoint const& checkpoint, std::string const& prefix) const {
  return torch_dist_keys(checkpoint, prefix);
}

std::optional<RunRecord> TorchDistFormat::run_record(Checkpoint const& checkpoint) const {
  std::optional<RunRecord> record = DcpFormat::run_record(checkpoint);
  if (record && checkpoint.chunked.common != nullptr) {
    record->all = true;
    record->edited = false;
  }
  return record;
}

void TorchDistFormat::add_optimizer_settings(Checkpoint const& checkpoint,
                                             RunRecord& record) const {
  gather_settings(checkpoint, record);
}

TargetTraits TorchDistFormat::target() const {
  return {.names = NameOwner::megatron,
          .storage = Storage::chunks,
          .objects = true,
          .carries_state = true,
          .rank_states = true,
          .checksums = true};
}

void TorchDistFormat::lay_out(MappedTarget const& job, TargetDraft& draft) const {
  lay_out_dist(job, false, draft);
}

void TorchDistFormat::lay_out_named(NamedTarget const& job, TargetDraft& draft) const {
  std::optional<RunRecord> const found = kept_record(job, draft);
  RunRecord const* record = found ? &*found : nullptr;
  lay_out_kept_keys(job, {.folder = run_folder(record), .nested = false, .side_files = false},
                    draft);
  add_dist_files(draft, {record, {}}, job.source);
}

std::optional<huggingface::Folder> TorchDistFormat::model_files(
    Checkpoint const& checkpoint) const {
  return carried_in(checkpoint.folder, checkpoint.root);
}

FormatWords FsdpDtensorFormat::words() const {
  FormatWords words = DcpFormat::words();
  words.help = "Megatron-FSDP";
  return words;
}

StoredView FsdpDtensorFormat::view(Checkpoint const& checkpoint, std::string const& prefix) const {
  return fsdp_dtensor_keys(checkpoint, prefix);
}

TargetTraits FsdpDtensorFormat::target() const {
  return {.names = NameOwner::megatron,
          .storage = Storage::chunks,
          .keeps_own = true,
          .objects = true,
          .carries_state = true,
          .rank_states = true,
          .masters_alone = true};
}

void FsdpDtensorFormat::lay_out(MappedTarget const& job, TargetDraft& draft) const {
  lay_out_dist(job, true, draft);
}

void FsdpDtensorFormat::lay_out_named(NamedTarget const& job, TargetDraft& draft) const {
  std::optional<RunRecord> const found = kept_record(job, draft);
  if (!found) return lay_out_kept_keys(job, {}, draft);
  lay_out_kept_keys(job, {.folder = run_folder(&*found)}, draft);
  add_tracker(draft, &*found);
}

std::optional<huggingface::Folder> FsdpDtensorFormat::model_files(
    Checkpoint const& checkpoint) const {
  return carried_in(checkpoint.folder, checkpoint.root);
}

StoredView TorchDcpFormat::view(Checkpoint const& checkpoint, std::string const& prefix) const {
  return torch_dcp_keys(checkpoint, prefix);
}

}  // namespace reshard::dcp
