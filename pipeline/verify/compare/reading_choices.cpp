#include "pipeline/verify/compare/reading_choices.hpp"

#include <algorithm>

#include "pipeline/records/own_manifest.hpp"
#include "pipeline/verify/compare/matched_casts.hpp"
#include "pipeline/verify/compare/matched_quant.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The manifest of a side; nothing where there is none that can be followed.
std::optional<Manifest> manifest_beside(ComparedSide const& side) {
  std::vector<std::string> ignored;  // `digest` explains what is not followed
  return own_manifest(side.path, side.checkpoint, ignored);
}

/// Whether a side was made from the other one. A source may have moved, but a target of another
/// job that this one does not name is rather made from it, over other steps.
bool may_be_made_from(std::optional<Manifest> const& own, std::filesystem::path const& path,
                      std::optional<Manifest> const& of_other) {
  return own && (is_made_from(*own, path) || !of_other);
}

/// Whether the job of a side left out optimizer state.
bool dropped_state(std::optional<Manifest> const& own) {
  std::optional<JobSpec> const job = own ? recorded_job(*own) : std::nullopt;
  return job && job->source.optimizer == StatePolicy::drop;
}

/// Where the job of one side has changed the model of the other, that one is read as changed.
void note_changes(ComparedSides& sides, std::optional<Manifest> const& of_a,
                  std::optional<Manifest> const& of_b) {
  ModelChanges const by_a = of_a ? recorded_changes(*of_a) : ModelChanges();
  ModelChanges const by_b = of_b ? recorded_changes(*of_b) : ModelChanges();
  bool const a_counts = by_a.any() && may_be_made_from(of_a, sides.b.path, of_b);
  bool const b_counts = by_b.any() && may_be_made_from(of_b, sides.a.path, of_a);
  if (a_counts == b_counts) return;
  ComparedSide& side = a_counts ? sides.b : sides.a;
  side.changes = a_counts ? by_a : by_b;
  sides.notes.push_back(fmt::format(
      "{} was made with other layers, experts or rows (by its {}): {} is changed as that job did",
      (a_counts ? sides.a : sides.b).path.string(), manifest_name, side.path.string()));
}

}  // namespace

std::vector<ReadingChoice> reading_choices(CompareRequest const& request, ComparedSides& sides) {
  std::optional<Manifest> const of_a = manifest_beside(sides.a);
  std::optional<Manifest> const of_b = manifest_beside(sides.b);
  for (auto const& [side, own] : {std::pair(&sides.a, &of_a), std::pair(&sides.b, &of_b)})
    if (*own) {
      if (side->checkpoint.names == NameOwner::megatron) side->recorded_rows = vocab_in(**own);
      side->made_dtype = recorded_dtype(**own);
      if (Json const* const others = (*own)->source.find("average"); others != nullptr)
        sides.notes.push_back(fmt::format(
            "{} is the mean of {} and {} more (by its {})", side->path.string(),
            (*own)->source.find("path") != nullptr ? *(*own)->source.find("path")->text() : "",
            others->items()->size(), manifest_name));
    }
  // Of two that were made so, one of the other, it is the later one.
  if (!sides.a.made_dtype.empty() && !sides.b.made_dtype.empty()) {
    bool const a_of_b = is_made_from(*of_a, sides.b.path);
    bool const b_of_a = is_made_from(*of_b, sides.a.path);
    if (a_of_b && !b_of_a) sides.b.made_dtype.clear();
    if (b_of_a && !a_of_b) sides.a.made_dtype.clear();
  }
  if (of_a && has_quantised(*of_a) && may_be_made_from(of_a, sides.b.path, of_b))
    sides.a.quantised_by = of_a;
  if (of_b && has_quantised(*of_b) && may_be_made_from(of_b, sides.a.path, of_a))
    sides.b.quantised_by = of_b;
  if (dropped_state(of_a) && may_be_made_from(of_a, sides.b.path, of_b))
    sides.without_state = sides.a.path;
  if (dropped_state(of_b) && may_be_made_from(of_b, sides.a.path, of_a))
    sides.without_state = sides.b.path;
  note_changes(sides, of_a, of_b);
  std::vector<ReadingChoice> choices{{request.terms_a, request.terms_b, {}, 1}};
  if (!request.by_records) return choices;
  auto const add = [&](bool anywhere) {
    ReadingChoice choice = choices.front();
    choice.turn = anywhere ? 2 : 0;
    auto const follow = [&](ComparedSide const& side, ReadingTerms& terms,
                            std::optional<Manifest> const& own,
                            std::optional<Manifest> const& of_other) {
      bool const is_source =
          of_other &&
          (is_made_from(*of_other, side.path) ||
           (anywhere && fact(of_other->source, "format") == Json(side.checkpoint.format->name())));
      if (!is_source && !own) return;
      ReadingTerms const before = terms;
      terms = completed(
          terms, is_source ? terms_of_source(*of_other) : terms_of_target(*own, request.library));
      if (terms == before) return;
      fs::path const record = (is_source ? *of_other : *own).root / manifest_name;
      choice.notes.push_back(fmt::format("{} is read as {} says: {}", side.path.string(),
                                         record.string(), terms_beside(before, terms)));
    };
    follow(sides.a, choice.a, of_a, of_b);
    follow(sides.b, choice.b, of_b, of_a);
    if (std::ranges::none_of(choices, [&](ReadingChoice const& known) {
          return known.a == choice.a && known.b == choice.b;
        }))
      choices.push_back(std::move(choice));
  };
  add(false);
  add(true);
  return choices;
}

std::optional<JobSpec> recorded_adapter_job(ComparedSide const& side, ComparedSide const& other) {
  std::optional<Manifest> const own = manifest_beside(other);
  if (!own || !is_made_from(*own, side.path)) return std::nullopt;
  std::optional<JobSpec> job = recorded_job(*own);
  bool const counts = job && job->model.adapter != AdapterUse::keep && job->source.adapter.empty();
  return counts ? std::move(job) : std::nullopt;
}

}  // namespace reshard
