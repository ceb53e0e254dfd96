#include "pipeline/verify/compare/matched_casts.hpp"

#include <optional>

#include "core/base/tables/counted.hpp"
#include "core/formats/targets/target.hpp"
#include "core/quant/cast.hpp"
#include "pipeline/job/job_field.hpp"
#include "pipeline/verify/reading_terms.hpp"
#include "stages/plan/value_changes.hpp"

namespace reshard {
namespace {

std::optional<DType> dtype_of(Catalog const& catalog, TensorId tensor) {
  auto const blobs = catalog.tensors[index(tensor)].blobs();
  return blobs.empty() ? std::nullopt : std::optional(catalog.blobs[blobs.front()].dtype);
}

/// How many tensors of `side` have other dtypes than those of `made` that they can be rounded to;
/// `apply`: they are.
std::size_t round_as(ComparedSide& side, ComparedSide const& made, bool apply) {
  JobPlan& plan = side.catalogue;
  std::size_t rounded = 0;
  for (std::size_t t = 0; t < plan.model->tensors().size(); ++t) {
    LogicalTensor const& tensor = plan.model->tensors()[t];
    auto const other = made.catalogue.model->find_tensor(tensor.name);
    if (!other || tensor.slot != SlotId::weight) continue;
    auto const from = dtype_of(plan.source, TensorId(t));
    auto const to = dtype_of(made.catalogue.source, *other);
    if (!from || !to || from == to || !quant::castable(*from, *to)) continue;
    ++rounded;
    if (!apply) continue;
    int const wanted = add_of(made.catalogue.listing.adds, *other);
    int const own = add_of(plan.listing.adds, TensorId(t));
    change_values_of(*plan.model, plan.source, TensorId(t), *to, wanted - own);
    if (wanted != own) plan.listing.adds[t] = wanted;
  }
  return rounded;
}

}  // namespace

std::string recorded_dtype(Manifest const& manifest) {
  std::optional<JobSpec> const job = recorded_job(manifest);
  if (!job || job->target.dtype == TargetDType::keep) return "";
  for (job::Field const& field : job::fields())
    if (field.key() == "target.dtype")
      return std::string(field.choices[static_cast<std::size_t>(job->target.dtype)]);
  return "";
}

ModelChanges recorded_changes(Manifest const& manifest) {
  std::optional<JobSpec> const job = recorded_job(manifest);
  return job ? job->target.changes : ModelChanges();
}

void match_casts(ComparedSides& sides, bool values) {
  if (sides.a.made_dtype.empty() == sides.b.made_dtype.empty()) return;
  bool const of_a = !sides.a.made_dtype.empty();
  ComparedSide const& made = of_a ? sides.a : sides.b;
  ComparedSide& side = of_a ? sides.b : sides.a;
  std::string const record = fmt::format("{} was made with target.dtype = \"{}\" (by its {})",
                                         made.path.string(), made.made_dtype, manifest_name);
  std::size_t const rounded = round_as(side, made, !values);
  if (rounded > 0 && values)
    sides.notes.push_back(record + ": differences are those of the rounding, too");
  else if (rounded > 0)
    sides.notes.push_back(fmt::format("{}: {} of {} {} rounded as it rounds", record,
                                      counted(rounded, "tensor"), side.path.string(),
                                      agreeing(rounded, "is", "are")));
}

}  // namespace reshard
