#include "pipeline/verify/digest.hpp"

#include <fmt/ranges.h>

#include "core/base/files/file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/shown_name.hpp"
#include "core/base/threads/activity.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "core/transport/rank_threads.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/option_words.hpp"
#include "pipeline/job/plan_request.hpp"
#include "pipeline/records/own_manifest.hpp"
#include "pipeline/records/target_check.hpp"
#include "pipeline/verify/rank_state_look.hpp"
#include "pipeline/verify/reading_terms.hpp"
#include "pipeline/verify/suspects/suspect_tensors.hpp"
#include "pipeline/verify/tensor_hashes.hpp"
#include "stages/plan/catalogue.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

/// Of staging, where tensors are read in order.
constexpr std::uint64_t hash_memory_bytes = std::uint64_t{128} << 20;

std::uint64_t bytes_in_all(DigestWork const& work) {
  std::uint64_t bytes = 0;
  for (std::uint64_t const one : work.tensor_bytes) bytes += one;
  return bytes;
}

/// The digest of each check that says whether it holds.
using StateShares = std::vector<DigestId>;

StateShares add_states(DigestedCheckpoint& digested) {
  digested.checks =
      state_checks(*digested.catalogue.model, digested.catalogue.source,
                   DigestId{narrow<std::uint32_t>(digested.work.tensor_bytes.size())});
  return add_state_shares(digested.work, digested.checks);
}

void note_failed(DigestedCheckpoint& digested, StateShares const& states,
                 std::span<std::uint64_t const> digests) {
  for (std::size_t c = 0; c < digested.checks.size(); ++c) {
    StateCheck const& check = digested.checks[c];
    bool const holds =
        check.rule == StateRule::not_negative
            ? digests[index(states[c])] == 0
            : digests[index(check.rounded)] == digests[index(digest_of(check.weight))];
    if (!holds) digested.failed.push_back(check);
  }
}

}  // namespace

JobPlan open_logical(Checkpoint const& checkpoint, DigestQuery const& query, Comm const& comm) {
  PlanRequest request = request_without_target(query.map, query.config, query.library);
  request.read.prefix = query.prefix;
  request.read.frozen = query.frozen;
  request.read.true_rows = true;
  request.read.true_vocab_size = query.vocab;
  if (query.job) {
    request.read.tp = query.job->source.tp;
    request.read.etp = query.job->source.etp;
    request.read.lora_alpha = query.job->model.lora_alpha;
    request.read.true_vocab_size = query.job->model.true_vocab_size;
    request.read.frozen = frozen_patterns(*query.job);
    request.read.drop_optimizer = query.job->source.optimizer == StatePolicy::drop;
  }
  JobPlan plan;
  together_seeing(comm, [&] {
    with_option_words(query.config_option,
                      [&] { plan = catalogue_as_stored(checkpoint, request); });
  });
  return plan;
}

void follow(DigestQuery& query, Manifest const& manifest) {
  if (query.map != "auto" || !query.config.empty() || query.job) return;
  ReadingTerms const terms = terms_of_target(manifest, query.library);
  query.map = manifest.map == "none" ? "none" : terms.map;
  if (query.prefix.empty()) query.prefix = terms.prefix;
  query.vocab = vocab_in(manifest);
  query.frozen = terms.frozen;
}

std::optional<Manifest> follow_own_manifest(DigestQuery& query, Checkpoint const& checkpoint,
                                            std::vector<std::string>& notes, Comm const& comm) {
  std::optional<Manifest> manifest;
  if (query.job && query.job->model.adapter != AdapterUse::keep) return manifest;
  together_seeing(comm, [&] {
    manifest = own_manifest(query.path, checkpoint, notes);
    if (manifest) follow(query, *manifest);
  });
  return manifest;
}

namespace {

/// Optimizer state: of a weight, or by its stored name.
bool is_state(JobPlan const& catalogue, TensorId tensor) {
  LogicalTensor const& of = catalogue.model->tensor(tensor);
  return of.slot != SlotId::weight || (catalogue.stored_names && is_optimizer_key(of.name));
}

/// Its tensors, of which a digest may leave some out.
void add_catalogue(DigestedCheckpoint& digested, DigestQuery const& query, Comm const& comm) {
  digested.catalogue = open_logical(digested.checkpoint, query, comm);
  Model& model = *digested.catalogue.model;
  for (std::size_t t = 0; query.weights_only && t < model.tensors().size(); ++t)
    if (is_state(digested.catalogue, TensorId(t))) model.set_exists(TensorId(t), false);
}

DigestedCheckpoint digest_opened(Checkpoint checkpoint, DigestQuery const& query,
                                 Comm const& comm) {
  DigestedCheckpoint result;
  result.checkpoint = std::move(checkpoint);
  add_catalogue(result, query, comm);
  together(comm, [&] {
    result.work = digest_work(*result.catalogue.model, result.catalogue.source, query.scope);
  });
  StateShares const states = query.states ? add_states(result) : StateShares();
  ScanOptions options;
  options.threads = rank_threads(comm);
  options.file_hashes = query.file_hashes;
  begin_phase("reading the tensors");
  options.watch = [all = bytes_in_all(result.work) / static_cast<std::uint64_t>(comm.size())](
                      std::uint64_t bytes) { advance_phase(bytes, all); };
  result.found =
      scan(comm, std::vector<std::filesystem::path>(result.checkpoint.files), result.work, options);
  together(comm, [&] {
    std::vector<std::uint64_t> const digests = tensor_digests(result.work, result.found.shares);
    note_failed(result, states, digests);
    result.tensors =
        tensor_list(*result.catalogue.model, result.catalogue.source,
                    !result.catalogue.stored_names, digests, result.catalogue.listing.adds);
    result.total = total_digest(result.tensors);
  });
  return result;
}

}  // namespace

DigestedCheckpoint digest_checkpoint(DigestQuery const& query, Comm const& comm) {
  together_seeing(comm, [&] { check_checkpoint_folder(query.path); });
  OpenChoice choice;
  choice.rank_states = query.states;
  choice.torchao_objects = true;  // the records of files cover them
  return digest_opened(open_query(query, choice, comm), query, comm);
}

namespace {

/// As digest_opened(), from tensors that are read in order.
DigestedCheckpoint ordered_digests(Checkpoint checkpoint, DigestQuery const& query,
                                   std::vector<TensorHashes>& hashes, Comm const& comm) {
  DigestedCheckpoint result;
  result.checkpoint = std::move(checkpoint);
  add_catalogue(result, query, comm);
  begin_phase("reading the tensors");
  hashes = hash_tensors(result.checkpoint, result.catalogue, hash_memory_bytes, rank_threads(comm),
                        comm);
  together(comm, [&] {
    Model const& model = *result.catalogue.model;
    std::vector<std::uint64_t> digests;
    for (TensorHashes const& one : hashes) digests.push_back(one.crc64);
    result.tensors = tensor_list(model, result.catalogue.source, !result.catalogue.stored_names,
                                 digests, result.catalogue.listing.adds);
    result.total = total_digest(result.tensors);
    for (std::size_t t = 0; t < hashes.size(); ++t) {
      auto const blobs = result.catalogue.source.tensors[t].blobs();
      bool const there = model.exists(TensorId(t)) && !blobs.empty();
      result.work.tensor_bytes.push_back(
          there
              ? static_cast<std::uint64_t>(logical_volume(model, TensorId(t)) *
                                           bits(result.catalogue.source.blobs[blobs[0]].dtype) / 8)
              : 0);
    }
    result.found.bytes_read = bytes_in_all(result.work);
  });
  return result;
}

/// [{"name": "layer.3.expert.5.experts.gate", "sha256": "…"}], of a tensor with layers.
Json part_hashes(Model const& model, TensorId tensor, TensorHashes const& hashes) {
  Json parts = Json::array();
  SuspectTensor const sliced = sliced_tensor(model, tensor, DType::u8).tensor;
  std::vector<std::string> const& names = sliced.slices;
  for (std::size_t p = 0; p < names.size() && !names[p].empty(); ++p)
    parts.push(Json()
                   .set("name", names[p] + sliced.name)
                   .set("sha256", hex_of(names.size() == 1 ? hashes.sha256 : hashes.parts[p])));
  return parts;
}

/// As if the record were one of weights alone.
void leave_states_out(Manifest& manifest, JobPlan const& catalogue) {
  bool const totalled = !manifest.total.empty();
  std::erase_if(manifest.tensors, [&](TensorDigest const& tensor) {
    std::optional<TensorId> const id = catalogue.model->find_tensor(tensor.name);
    return id && is_state(catalogue, *id);
  });
  if (totalled) manifest.total = total_digest(manifest.tensors);
}

/// With optimizer state of rank files, unless only weights are wanted.
Checkpoint open_for_digest(DigestQuery const& query, std::vector<std::string>& notes,
                           Comm const& comm) {
  together_seeing(comm, [&] { check_checkpoint_folder(query.path); });
  Checkpoint checkpoint = open_query(query, {}, comm);
  if (!checkpoint.run.newer_saves.empty()) notes.push_back(checkpoint.run.newer_saves);
  if (query.weights_only || query.map == "none") return checkpoint;
  RankStateLook look = look_at_rank_states(query.path, checkpoint, comm);
  if (look.opened) return *std::move(look.opened);
  if (checkpoint.storage == Storage::shares && checkpoint.state.inventory.optimizer)
    notes.push_back("the optimizer state is left out" +
                    (look.fault ? ". " + look.fault->sentence() : std::string()));
  return checkpoint;
}

}  // namespace

DigestReport digest_report(DigestQuery query, Comm const& comm) {
  std::vector<std::string> notes;
  Checkpoint checkpoint = open_for_digest(query, notes, comm);
  std::optional<Manifest> manifest = follow_own_manifest(query, checkpoint, notes, comm);
  std::vector<TensorHashes> hashes;
  // Merged weights are in no file.
  bool const merged = query.job && query.job->model.adapter == AdapterUse::merge;
  DigestedCheckpoint const found = query.sha256 || merged
                                       ? ordered_digests(std::move(checkpoint), query, hashes, comm)
                                       : digest_opened(std::move(checkpoint), query, comm);
  if (!found.catalogue.listing.prefix_note.empty())
    notes.push_back(found.catalogue.listing.prefix_note);
  if (manifest && query.weights_only) leave_states_out(*manifest, found.catalogue);
  if (manifest)
    if (std::string note = why_other_total(*manifest, found.tensors, std::string(manifest_name));
        !note.empty())
      notes.push_back(std::move(note));
  Model const& model = *found.catalogue.model;
  DigestReport report;
  Json::Array tensors;
  for (TensorDigest const& tensor : found.tensors) {
    Json::Array shape(tensor.shape.begin(), tensor.shape.end());
    Json::Array axes(tensor.axes.begin(), tensor.axes.end());
    Json item;
    item.set("name", tensor.name.text())
        .set("dtype", tensor.dtype.text())
        .set("shape", Json(std::move(shape)))
        .set("axes", Json(std::move(axes)));
    item.set("crc64", hex64(tensor.crc64));
    std::string shown = hex64(tensor.crc64);
    if (query.sha256) {
      TensorId const id = *model.find_tensor(tensor.name);
      shown = hex_of(hashes[index(id)].sha256);
      item.set("sha256", shown);
      if (Json parts = part_hashes(model, id, hashes[index(id)]); !parts.items()->empty())
        item.set("parts", std::move(parts));
    }
    if (tensor.add != 0) item.set("add", tensor.add);
    tensors.push_back(std::move(item));
    report.text +=
        fmt::format("{}  {:<8}  [{}]  {}{}\n", shown, tensor.dtype, fmt::join(tensor.shape, ", "),
                    shown_name(tensor.name),
                    tensor.add == 0 ? "" : fmt::format("  (stored: the value {:+})", tensor.add));
  }
  std::string_view const format = found.checkpoint.format->name();
  std::uint64_t const bytes = bytes_in_all(found.work);
  for (std::string const& note : notes) report.text += fmt::format("note: {}\n", note);
  report.text +=
      fmt::format("total {}  {}, {}, {}{}{}\n", found.total,
                  counted(found.tensors.size(), "tensor"), human_bytes(bytes), format,
                  found.catalogue.map_name.empty() ? "" : ", " + found.catalogue.map_name,
                  query.weights_only ? ", weights only" : "");
  report.json.set("path", query.path.string())
      .set("format", format)
      .set("map", found.catalogue.map_name)
      .set("total", found.total);
  report.json.set("bytes", bytes)
      .set("bytes_read", found.found.bytes_read)
      .set("tensors", Json(std::move(tensors)))
      .set("notes", Json(Json::Array(notes.begin(), notes.end())));
  return report;
}

}  // namespace reshard
