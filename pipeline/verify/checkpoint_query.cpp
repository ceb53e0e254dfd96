#include "pipeline/verify/checkpoint_query.hpp"

#include "core/base/error.hpp"
#include "core/base/files/sight.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/plan_request.hpp"
#include "stages/plan/change/taken_layers.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {

void check_reading(JobSpec const& job) {
  if (!job.source.average.empty())
    fail(ErrorKind::usage,
         "[source] average: this command reads one checkpoint, not the mean of several. Name a job "
         "without the key, or the target of the job.");
  if (job.model.quant == QuantChoice::dequantise_bf16)
    fail(
        ErrorKind::usage,
        "[model] quant = \"dequantise-bf16\": this command reads the bytes of quantised weights, not "
        "their values. Name a job without the key, or the target of the job.");
}

void add_inputs(Checkpoint& source, ModelChanges const& changes, MapLibrary const& library,
                Comm const& comm) {
  if (!changes.mtp_from.empty()) {
    together_seeing(comm, [&] {
      if (!sees_anything(changes.mtp_from))
        fail(ErrorKind::source,
             "[target] mtp_from = {}: does not exist, or is a link to nothing. Check the path.",
             changes.mtp_from);
    });
    Checkpoint const from = open_source(changes.mtp_from, comm);
    together_seeing(comm, [&] { take_prediction_layers(source, from, library); });
  }
  if (!changes.rows_from.empty()) add_new_rows(source, changes.rows_from, comm);
}

Checkpoint open_by_job(std::filesystem::path const& path, JobSpec const* job, OpenChoice choice,
                       Comm const& comm) {
  if (job == nullptr) return open_source(path, FormatId::automatic, choice, comm);
  choice.prefix = job->source.prefix;
  Checkpoint source = open_source(path, job->source.format, choice, comm);
  settle_adapter(source, wrapped_choice(*job), comm);
  return source;
}

Checkpoint open_query(CheckpointQuery const& query, OpenChoice choice, Comm const& comm) {
  return open_by_job(query.path, query.job.get(), std::move(choice), comm);
}

}  // namespace reshard
