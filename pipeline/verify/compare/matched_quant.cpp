#include "pipeline/verify/compare/matched_quant.hpp"

#include <optional>
#include <utility>

#include "core/base/capture.hpp"
#include "core/formats/model_files.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "pipeline/job/plan_request.hpp"
#include "pipeline/records/own_manifest.hpp"
#include "stages/plan/catalogue.hpp"

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
  if (!job.source.average.empty()) return false;  // the side is one of several
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

std::vector<ConfigDifference> quant_config_differences(ComparedSides const& sides) {
  bool const of_a = sides.a.quantised_by.has_value();
  ComparedSide const& made = of_a ? sides.a : sides.b;
  ComparedSide const& side = of_a ? sides.b : sides.a;
  Json planned;
  for (TextFile const& text : side.catalogue.texts)
    if (text.path.filename() == huggingface::config_name)
      planned = parse_json(text.make ? text.make() : text.text, text.path.string());
  auto const files = files_of(made.checkpoint);
  auto const shown = [](Json const& config) {
    Json const found = fact(config, "quantization_config");
    return found.is_null() ? std::string() : found.dump();
  };
  std::string const held = files ? shown(files->config) : "";
  if (shown(planned) == held) return {};
  ConfigDifference difference{"quantization_config", shown(planned), held};
  if (of_a) std::swap(difference.a, difference.b);
  return {difference};
}

}  // namespace reshard
