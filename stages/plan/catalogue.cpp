#include "stages/plan/catalogue.hpp"

#include "core/base/capture.hpp"
#include "core/formats/format.hpp"
#include "stages/plan/adapter/merged_adapter.hpp"
#include "stages/plan/adapter/named_adapter.hpp"
#include "stages/plan/change/changed_model.hpp"
#include "stages/plan/identity_plan.hpp"
#include "stages/plan/source/described_source.hpp"
#include "stages/plan/source/state/master_weights.hpp"

namespace reshard {

JobPlan catalogue(Checkpoint const& source, PlanRequest const& request, Masters masters) {
  if (request.read.map == "none" && source.storage == Storage::shares &&
      source.shares.places.size() > 1)
    fail(ErrorKind::usage,
         "{}: its ranks use the same names for different parts of the model, which only a map can "
         "put together. Leave out --map none.",
         source.place);
  bool const plain = source.storage == Storage::chunks && source.names == NameOwner::family;
  bool const described =
      request.read.map != "auto" || !request.read.config.empty() || !source.model.config.is_null();
  if (request.read.map == "none" || (plain && !described))
    return identity_catalogue(source, request);
  if (source.storage != Storage::chunks && !request.read.prefix.empty())
    fail(ErrorKind::usage,
         "[source] prefix = \"{}\": {} is a {} checkpoint, whose keys have no prefix to remove. "
         "Leave it out.",
         request.read.prefix, source.folder.string(), source.format->name());
  if (auto const found = found_prefix(source, request, false, PrefixUse::look)) {
    JobPlan job = catalogue(source, behind_prefix(*found, request), masters);
    job.listing.prefix_note = found->note;
    return job;
  }
  check_wrapped(source, request, false);
  SourceModel model = read_described(source, request, !source.others.adapter);
  merge_adapter(source, request, model);
  if (masters != Masters::as_stored) split_masters(source, model, false, masters == Masters::apart);
  change_model(source, request, model);
  JobPlan job;
  job.map_name = model.names.maps.family ? model.names.maps.family->name : "";
  job.warnings = std::move(model.warnings);
  job.model = std::move(model.model);
  job.source = std::move(model.stored.catalog);
  job.listing.adds = std::move(model.stored.adds);
  job.listing.casts = std::move(model.stored.casts);
  job.listing.padded_vocab = model.facts.traits.padded_vocab;
  job.changed = std::move(model.changed);
  return job;
}

JobPlan catalogue_as_stored(Checkpoint const& source, PlanRequest const& request) {
  JobPlan plan;
  auto const failed = capture([&] { plan = catalogue(source, request); });
  if (!failed) return plan;
  if (!failed->is_of_unknown_form() || !may_keep_names(source, request)) throw *failed;
  PlanRequest as_stored = request;
  as_stored.read.map = "none";
  plan = identity_catalogue(source, as_stored);
  plan.warnings.insert(plan.warnings.begin(), carried_note(*failed));
  return plan;
}

}  // namespace reshard
