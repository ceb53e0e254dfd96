#include "pipeline/verify/verify_one.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "core/base/files/file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/shown_name.hpp"
#include "core/formats/dcp/describe.hpp"
#include "core/transport/gathered_texts.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/records/own_manifest.hpp"
#include "pipeline/verify/look_at_masters.hpp"
#include "pipeline/verify/own_record.hpp"
#include "pipeline/verify/rank_state_look.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> faults_of_tensors(Manifest const& manifest,
                                           std::vector<TensorDigest> const& found) {
  std::vector<std::string> faults;
  std::map<std::string_view, TensorDigest const*> there;
  for (TensorDigest const& tensor : found) there.emplace(tensor.name, &tensor);
  for (TensorDigest const& recorded : manifest.tensors) {
    auto const at = there.find(recorded.name);
    if (at == there.end()) {
      faults.push_back(fmt::format("'{}': is missing", recorded.name));
      continue;
    }
    TensorDigest const& tensor = *at->second;
    if (tensor.dtype != recorded.dtype || tensor.shape != recorded.shape)
      faults.push_back(fmt::format("'{}': is {} [{}], but {} [{}] is recorded", recorded.name,
                                   tensor.dtype, fmt::join(tensor.shape, ", "), recorded.dtype,
                                   fmt::join(recorded.shape, ", ")));
    else if (tensor.crc64 != recorded.crc64)
      faults.push_back(fmt::format("'{}': has the digest {}, {} is recorded", recorded.name,
                                   hex64(tensor.crc64), hex64(recorded.crc64)));
    there.erase(at);
  }
  for (auto const& [name, tensor] : there)
    faults.push_back(fmt::format("'{}': is not recorded", shown_name(std::string(name))));
  return faults;
}

std::vector<std::string> faults_of_replicas(DigestedCheckpoint const& found) {
  std::vector<std::string> faults;
  Catalog const& catalog = found.catalogue.source;
  for (ShareId const differing : differing_replicas(found.work, found.found.shares)) {
    PieceShare const& one = found.work.share(differing);
    Blob const& blob = catalog.blobs[one.blob];
    Blob const& other = catalog.blobs[found.work.share(one.same_as).blob];
    faults.push_back(
        fmt::format("'{}': '{}' in {} and '{}' in {} should be the same, but differ",
                    shown_name(found.catalogue.model->tensors()[index(one.digest)].name),
                    shown_name(other.name), catalog.files[other.file], shown_name(blob.name),
                    catalog.files[blob.file]));
  }
  return faults;
}

/// Where masters are not those of their weights. Rank 0 reads the first tensor of these again.
std::vector<std::string> faults_of_states(DigestedCheckpoint const& found, Comm const& comm) {
  std::vector<std::string> mine;
  Model const& model = *found.catalogue.model;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    bool looked = false;
    for (StateCheck const& check : found.failed) {
      if (check.rule == StateRule::not_negative) {
        mine.push_back(fmt::format("'{}': has a value that is negative, NaN or infinite",
                                   shown_name(model.tensor(check.state).name)));
        continue;
      }
      std::string const name = shown_name(model.tensor(check.weight).name);
      if (looked) {
        mine.push_back(fmt::format("'{}': its master weights do not round to it", name));
        continue;
      }
      looked = true;
      MasterFindings const masters =
          look_at_masters(found.checkpoint, *found.catalogue.model, found.catalogue.source, check);
      mine.push_back(fmt::format("'{}': {} of {} master weights do not round to it, first at {}",
                                 name, masters.differing, masters.elements, masters.first));
    }
  });
  return gathered_texts(mine, comm);
}

std::string states_text(std::vector<StateCheck> const& checks) {
  auto const masters = std::ranges::count(checks, StateRule::rounds_to_weight, &StateCheck::rule);
  return fmt::format("{} of master weights against their weights, {} of second moments",
                     counted(masters, "tensor"), std::ssize(checks) - masters);
}

std::size_t replicas_of(DigestWork const& work) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < work.shares.size(); ++i)
    count += work.shares[i].same_as != ShareId(i);
  return count;
}

/// Collects what was checked and what was found.
class Verdict {
 public:
  explicit Verdict(fs::path const& path) { report_.json.set("path", path.string()); }

  void looked(std::string_view key, std::string const& what,
              std::vector<std::string> const& faults) {
    report_.json.set(key, Json(Json::Array(faults.begin(), faults.end())));
    for (std::string const& fault : faults) report_.text += fault + "\n";
    report_.sound = report_.sound && faults.empty();
    parts_.push_back(
        faults.empty() ? what : fmt::format("{} ({})", what, counted(faults.size(), "fault")));
  }

  void note(std::string const& text) {
    report_.text += "note: " + text + "\n";
    report_.json.set("note", text);
  }

  VerifyReport take() {
    report_.json.set("sound", report_.sound);
    report_.text +=
        fmt::format("{}: {}\n", report_.sound ? "OK" : "damaged", fmt::join(parts_, ", "));
    return std::move(report_);
  }

 private:
  VerifyReport report_;
  std::vector<std::string> parts_;
};

/// Whether there is optimizer state of the logical tensors.
bool holds_states(Checkpoint const& checkpoint, std::string const& prefix) {
  StoredView const view = checkpoint.format->view(checkpoint, prefix);
  StateForm const form = checkpoint.format->inventory(checkpoint, view).optimizer.form;
  return form == StateForm::by_weight || form == StateForm::in_buffers;
}

/// A checkpoint whose headers cannot be read may still say which of its files is to blame.
VerifyReport verify_unreadable(fs::path const& path, Error const& error, Comm const& comm) {
  std::optional<OwnRecord> own;
  auto const nothing =
      capture([&] { together_seeing(comm, [&] { own = find_record(path, {}, false); }); });
  if (nothing) throw error;
  std::vector<std::string> const faults = faults_of_files(*own, comm);
  if (faults.empty()) throw error;
  Verdict verdict(path);
  verdict.looked("files", fmt::format("files against {}, the rest cannot be read", own->name()),
                 faults);
  return verdict.take();
}

}  // namespace

std::vector<std::string> file_faults(fs::path const& path, Checkpoint const& checkpoint,
                                     Comm const& comm) {
  OwnRecord own;
  together_seeing(comm, [&] {
    own = find_record(path, std::vector<fs::path>(checkpoint.files),
                      checkpoint.storage == Storage::shares);
  });
  if (!own.lists_files() && own.manifest)
    fail(
        ErrorKind::usage,
        "{}: lists no files, because the job that wrote it did not read them back. Set source.verify to \"auto\".",
        own.file());
  std::vector<std::string> faults = faults_of_files(own, comm);
  add_unlisted(own, checkpoint, faults);
  return faults;
}

VerifyReport verify_one(DigestQuery query, Comm const& comm) {
  together_seeing(comm, [&] { check_checkpoint_folder(query.path); });
  Checkpoint checkpoint;
  OpenChoice choice;
  choice.torchao_objects = true;  // the files' records cover them
  auto const unreadable = capture([&] { checkpoint = open_query(query, choice, comm); });
  if (unreadable) return verify_unreadable(query.path, *unreadable, comm);
  bool const replicas = query.scope == DigestScope::all;
  std::optional<OwnRecord> own;
  auto const nothing = capture([&] {
    together_seeing(comm, [&] {
      own = find_record(query.path, std::vector<fs::path>(checkpoint.files),
                        checkpoint.storage == Storage::shares);
    });
  });
  std::vector<std::string> absent;
  together_seeing(comm, [&] { absent = dcp::absent_parts(checkpoint); });
  RankStateLook const rank_states = look_at_rank_states(query.path, checkpoint, comm);
  bool const states = rank_states.opened || holds_states(checkpoint, query.prefix);
  if (nothing && !((replicas || states || rank_states.fault || !absent.empty()) &&
                   nothing->kind() == ErrorKind::usage))
    throw *nothing;
  Verdict verdict(query.path);
  if (!checkpoint.run.newer_saves.empty()) verdict.note(checkpoint.run.newer_saves);
  if (!absent.empty()) verdict.looked("parts", "the files that Megatron loads", absent);
  if (own) {
    std::vector<std::string> faults = faults_of_files(*own, comm);
    add_unlisted(*own, checkpoint, faults);
    verdict.looked(
        "files",
        fmt::format("{} against {}", counted(expected_files(*own).size(), "file"), own->name()),
        faults);
  }
  if (rank_states.fault)
    verdict.looked("optimizer", "optimizer state", {rank_states.fault->sentence()});
  if (!replicas && !states && !(own && own->manifest)) return verdict.take();
  if (own && own->manifest)
    together_seeing(comm, [&] {
      follow(query, *own->manifest);
      query.vocab = vocab_in(*own->manifest);
    });
  query.states = states && query.map != "none";
  DigestedCheckpoint found;
  if (auto const unread = capture([&] { found = digest_checkpoint(query, comm); })) {
    if (absent.empty()) throw *unread;
    return verdict.take();  // without what describes the model its tensors are not known
  }
  if (nothing && !replicas && found.checks.empty() && absent.empty()) throw *nothing;
  if (own && own->manifest)
    verdict.looked("tensors",
                   fmt::format("{} against {}", counted(own->manifest->tensors.size(), "tensor"),
                               manifest_name),
                   faults_of_tensors(*own->manifest, found.tensors));
  if (replicas)
    verdict.looked("replicas", counted(replicas_of(found.work), "replica"),
                   faults_of_replicas(found));
  if (query.states && !found.checks.empty())
    verdict.looked("optimizer", states_text(found.checks), faults_of_states(found, comm));
  return verdict.take();
}

}  // namespace reshard
