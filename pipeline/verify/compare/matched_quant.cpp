#include "pipeline/verify/compare/matched_quant.hpp"

#include <optional>

#include "core/base/capture.hpp"
#include "pipeline/job/plan_request.hpp"
#include "pipeline/records/own_manifest.hpp"

namespace reshard {
namespace {

using huggingface::MadeQuant;

/// The job that made a checkpoint.
std::optional<JobSpec> job_of(Manifest const& manifest) {
  std::string const* const text = manifest.job.text();
  std::optional<JobSpec> job;
  if (text != nullptr)
    (void)capture([&] { job = parse_job_spec(*text, std::string(manifest_name), {}); });
  return job;
}

}  // namespace

bool has_quantised(Manifest const& manifest) {
  auto const job = job_of(manifest);
  return job && job->target.options.huggingface.quant != MadeQuant::none;
}

bool match_quantised_target(ComparedSides& sides, CompareRequest const& request) {
  if (!sides.a.quantised_by == !sides.b.quantised_by) return false;
  bool const of_a = sides.a.quantised_by.has_value();
  ComparedSide& made = of_a ? sides.a : sides.b;
  ComparedSide& side = of_a ? sides.b : sides.a;
  JobSpec const job = *job_of(*made.quantised_by);
  PlanRequest planned = plan_request(job, request.library);
  if (!is_made_from(*made.quantised_by, side.path)) {
    ReadingTerms const& terms = side.terms;
    planned.read = request_without_target(terms.map, terms.config, request.library).read;
    planned.read.prefix = terms.prefix;
    planned.read.tp = terms.tp;
    planned.read.etp = terms.etp;
    planned.read.dequantise = job.model.quant == QuantChoice::dequantise_bf16;
  }
  planned.read.drop_optimizer = true;
  planned.read.drop_rng = true;
  planned.read.objects_unread = true;
  side.request = planned;
  side.catalogue = make_job_plan(side.checkpoint, planned, {});
  side.catalogue.plan = {};
  side.catalogue.warnings.clear();
  PlanRequest by_name;
  by_name.read.map = "none";
  made.request = by_name;
  made.catalogue = catalogue(made.checkpoint, by_name);
  sides.by_names = true;
  sides.notes.push_back(fmt::format(
      "{} was made with target.quant (by its {}): {} is quantised as that job did, and the codes and "
      "scales are compared",
      made.path.string(), manifest_name, side.path.string()));
  return true;
}

}  // namespace reshard
