#include "pipeline/verify/target_gate.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include <fmt/ranges.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/listed_folders.hpp"
#include "core/base/heap.hpp"
#include "core/base/text/shown_name.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/dcp/describe.hpp"
#include "core/formats/model_files.hpp"
#include "core/plan/equal/source_proof.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/plan_request.hpp"
#include "pipeline/records/own_manifest.hpp"
#include "pipeline/records/target_check.hpp"
#include "pipeline/records/target_manifest.hpp"
#include "pipeline/verify/reading_terms.hpp"
#include "stages/plan/catalogue.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

bool is_alike(TensorDigest const& a, TensorDigest const& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.add == b.add;
}

/// How the tensors that a reader finds differ from those that are recorded, as a sentence without
/// its dot; "" when they are the same.
std::string difference_of(std::span<TensorDigest const> recorded,
                          std::span<TensorDigest const> found) {
  // Mostly they are in the same order, too.
  if (std::ranges::equal(recorded, found, [](TensorDigest const& a, TensorDigest const& b) {
        return a.name == b.name && is_alike(a, b);
      }))
    return "";
  std::vector<std::string> faults;
  std::map<std::string_view, TensorDigest const*> there;
  for (TensorDigest const& tensor : found) there.emplace(tensor.name, &tensor);
  for (TensorDigest const& one : recorded) {
    auto const at = there.find(one.name);
    if (at == there.end()) {
      faults.push_back(fmt::format("'{}' is recorded, but not found", shown_name(one.name)));
      continue;
    }
    TensorDigest const& tensor = *at->second;
    if (!is_alike(tensor, one))
      faults.push_back(fmt::format("'{}' is {} [{}], but {} [{}] is recorded", shown_name(one.name),
                                   tensor.dtype, fmt::join(tensor.shape, ", "), one.dtype,
                                   fmt::join(one.shape, ", ")));
    there.erase(at);
  }
  for (auto const& [name, tensor] : there)
    faults.push_back(fmt::format("'{}' is found, but not recorded", shown_name(std::string(name))));
  return listed(faults, 8);
}

class Gate {
 public:
  Gate(GatedTarget const& target, Comm const& comm) : target_(target), comm_(comm) {}

  GateResult pass() {
    std::optional<Error> fault = attempt();
    if (fault) {
      see_files();
      fault = attempt();  // a file system that failed once may have been the cause
    }
    if (fault) refuse(*fault);
    return {recorded_.tensors.size()};
  }

 private:
  std::optional<Error> attempt() {
    ListedFolders const listed(target_.folder);
    std::optional<Manifest> own;
    if (auto fault =
            capture([&] { together_seeing(comm_, [&] { own = find_manifest(target_.folder); }); }))
      return fault;
    if (own)
      recorded_ = *std::move(own);
    else
      recorded_.tensors = recorded_tensors(
          target_.plan, std::vector<std::uint64_t>(target_.plan.model->tensors().size(), 0));
    tried_.clear();
    return read();
  }

  /// Without any terms, else with those of the record, else with the keys of the job, else with the
  /// config of its source as well, which a target of a family's names may not hold. Where none
  /// finds what is recorded, the last one, which knows most, says why.
  std::optional<Error> read() {
    JobSpec const& spec = target_.spec;
    bool const kept = target_.plan.stored_names;
    ReadingTerms terms;
    if (kept) terms.map = "none";
    terms.frozen = target_.plan.frozen;
    auto fault = try_as(terms);
    if (fault) {
      ReadingTerms recorded;
      together_seeing(comm_, [&] { recorded = terms_of_target(recorded_, target_.library); });
      fault = try_other(completed(terms, recorded), *fault);
    }
    if (!spec.target.options.dcp.map.empty())
      terms.map = spec.target.options.dcp.map;
    else if (!kept && is_family(spec.model.map, target_.library))
      terms.map = spec.model.map;
    else if (!kept && format_of(spec.target.format).target().needs_masters)
      terms.map = word_of_map(target_.plan.map_name);
    terms.prefix = spec.target.options.dcp.prefix;
    if (fault) fault = try_other(terms, *fault);
    if (fault && !kept) {
      together_seeing(comm_, [&] {
        auto const files = files_of(target_.source, spec.source.config);
        if (files && !files->config.is_null()) terms.config = files->path;
      });
      fault = try_other(terms, *fault);
    }
    // No map takes what the source's program did not save for complete: the job said so.
    if (fault && target_.plan.absent.incomplete) fault = capture([&] { (void)opened({}); });
    return fault;
  }

  /// `before`, where that was tried.
  std::optional<Error> try_other(ReadingTerms const& terms, Error const& before) {
    return std::ranges::find(tried_, terms) == tried_.end() ? try_as(terms)
                                                            : std::optional<Error>(before);
  }

  std::optional<Error> try_as(ReadingTerms const& terms) {
    tried_.push_back(terms);
    auto fault = capture([&] { read_as(terms); });
    if (fault && !is_of_readers(*fault)) throw *fault;
    return fault;
  }

  static bool is_of_readers(Error const& error) {
    return error.kind() == ErrorKind::source || error.kind() == ErrorKind::usage;
  }

  Checkpoint opened(ReadingTerms const& reading) const {
    OpenChoice choice;
    choice.rank_states = reading.map != "none";
    choice.compare_files = false;  // a model may repeat itself
    choice.torchao_objects = true;
    choice.prefix = reading.prefix;
    Checkpoint found = open_source(target_.folder, FormatId::automatic, choice, comm_);
    together_seeing(comm_, [&] { check_opened(found); });
    return found;
  }

  void read_as(ReadingTerms const& reading) {
    Checkpoint found = opened(reading);
    return_free_memory();
    JobPlan laid_out;
    together_seeing(comm_, [&] {
      PlanRequest request = request_without_target(reading.map, reading.config, target_.library);
      request.read.true_rows = true;
      request.read.true_vocab_size = vocab_in(recorded_);
      request.read.prefix = reading.prefix;
      request.read.frozen = reading.frozen;
      request.read.base_config = target_.plan.configs.model;
      laid_out = catalogue(found, request);
      found.forget_tensors();
    });
    together(comm_, [&] {
      prove_source(*laid_out.model, laid_out.source, static_cast<std::size_t>(comm_.rank()),
                   static_cast<std::size_t>(comm_.size()));
      std::vector<std::uint64_t> const none(laid_out.model->tensors().size(), 0);
      std::string const difference = difference_of(
          recorded_.tensors, tensor_list(*laid_out.model, laid_out.source, !laid_out.stored_names,
                                         none, laid_out.listing.adds));
      if (!difference.empty())
        fail(ErrorKind::source, "{}: {}", (target_.folder / manifest_name).string(), difference);
    });
  }

  /// With the source's names a target is what these names say.
  void check_opened(Checkpoint const& found) const {
    Format const& wanted = format_of(target_.spec.target.format);
    if (target_.plan.stored_names ? found.format->family() != wanted.family()
                                  : found.format != &wanted)
      throw Error(ErrorKind::source,
                  fmt::format("{}: is taken for a checkpoint of format \"{}\", \"{}\" was written",
                              target_.folder.string(), found.format->name(), wanted.name()));
    if (!found.shares.defects.empty()) throw Error(ErrorKind::source, found.shares.defects.front());
    std::vector<std::string> const absent =
        found.format == &wanted ? dcp::absent_parts(found) : std::vector<std::string>();
    if (!absent.empty()) throw Error(ErrorKind::source, absent.front());
  }

  /// A reader takes a file that cannot be seen for one that is not there. An Error of kind io where
  /// that is so.
  void see_files() const {
    auto const fault = capture([&] { together(comm_, [&] { see_own_files(); }); });
    // A file that is missing: the reader's own sentence names it.
    if (fault && fault->kind() != ErrorKind::source)
      throw Error(fault->kind(), of_target(fault->sentence()));
  }

  void see_own_files() const {
    for (std::size_t f = static_cast<std::size_t>(comm_.rank()); f < target_.plan.files.size();
         f += static_cast<std::size_t>(comm_.size())) {
      TargetFile const& file = target_.plan.files[f];
      std::uint64_t const there =
          File::open_for_reading(target_.folder / file.path, ErrorKind::source).size_bytes();
      if (there != file.size_bytes)
        fail(ErrorKind::io,
             "{}: has {} bytes, and {} were written. Check the file system, then run again.",
             (target_.folder / file.path).string(), there, file.size_bytes);
    }
    std::error_code failed;
    for (fs::directory_iterator entry(target_.folder, failed), end; !failed && entry != end;)
      entry.increment(failed);
    if (failed)
      fail(ErrorKind::io, "{}: cannot be listed: {}. Check the file system, then run again.",
           target_.folder.string(), failed.message());
  }

  /// A sentence about the staging folder, with the target in its place.
  std::string of_target(std::string sentence) const {
    std::string const staged = target_.folder.string();
    std::string const& target = target_.spec.target.path;
    for (std::size_t at = 0; (at = sentence.find(staged, at)) != std::string::npos;
         at += target.size())
      sentence.replace(at, staged.size(), target);
    return sentence;
  }

  /// In the words of the reader, who saw the staging folder.
  [[noreturn]] void refuse(Error const& fault) const {
    if (!is_of_readers(fault)) throw fault;
    std::string const sentence = of_target(fault.sentence());
    fail(
        ErrorKind::self_check,
        "the target was written, and cannot be read as a source: {}{} Nothing was published. It is "
        "a fault of this program{}: keep the source, and report the job file with this message.",
        sentence, sentence.ends_with('.') ? "" : ".",
        target_.spec.run.verify == VerifyChoice::written ? "" : " or of the disk");
  }

  GatedTarget const& target_;
  Comm const& comm_;
  std::vector<ReadingTerms> tried_;
  Manifest recorded_;  ///< tensors alone, where the target has no record
};

}  // namespace

GateResult pass_gate(GatedTarget const& target, Comm const& comm) {
  return Gate(target, comm).pass();
}

}  // namespace reshard
