#include "pipeline/verify/compare/compare_sides.hpp"

#include <algorithm>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/option_words.hpp"
#include "pipeline/verify/checkpoint_query.hpp"
#include "pipeline/verify/compare/header_members.hpp"
#include "pipeline/verify/compare/matched_casts.hpp"
#include "pipeline/verify/compare/matched_quant.hpp"
#include "pipeline/verify/compare/reading_choices.hpp"
#include "pipeline/verify/compare/side_catalogues.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

StoredView view_of(ComparedSide const& side) {
  return side.checkpoint.format->view(side.checkpoint, side.terms.prefix);
}

bool has_states_in_rank_files(Checkpoint const& checkpoint) {
  return checkpoint.storage == Storage::shares && bool(checkpoint.state.inventory.optimizer);
}

/// Optimizer state in rank files is read where the other side has state that it can be compared
/// with.
bool may_compare_states(ComparedSide const& side) {
  Checkpoint const& other = side.checkpoint;
  if (has_states_in_rank_files(other)) return true;
  StateForm const form = other.format->inventory(other, view_of(side)).optimizer.form;
  return form == StateForm::by_weight || form == StateForm::in_buffers;
}

void open_again(ComparedSide& side, bool rank_states, Comm const& comm) {
  OpenChoice choice;
  choice.rank_states = rank_states;
  side.checkpoint = open_source(side.path, FormatId::automatic, choice, comm);
}

void read_rank_states(ComparedSides& sides, Comm const& comm) {
  bool const of_a = has_states_in_rank_files(sides.a.checkpoint) && may_compare_states(sides.b);
  bool const of_b = has_states_in_rank_files(sides.b.checkpoint) && may_compare_states(sides.a);
  if (of_a) open_again(sides.a, true, comm);
  if (of_b) open_again(sides.b, true, comm);
  if (!of_a || !of_b) return;
  bool const read_a = sides.a.checkpoint.state.rank_states != nullptr;
  bool const read_b = sides.b.checkpoint.state.rank_states != nullptr;
  if (read_a != read_b) open_again(read_a ? sides.a : sides.b, false, comm);
}

/// Where one side was made of the other's adapter, or without it, that one is read so.
void follow_adapter(ComparedSide& side, ComparedSide const& other, std::vector<std::string>& notes,
                    Comm const& comm) {
  std::optional<JobSpec> job;
  together_seeing(comm, [&] { job = recorded_adapter_job(side, other); });
  if (!job) return;
  side.checkpoint = open_by_job(side.path, &*job, {}, comm);
  notes.push_back(fmt::format("{} is read with the model.adapter of {}", side.path.string(),
                              (other.path / manifest_name).string()));
}

}  // namespace

ComparedSides open_sides(CompareRequest const& request, Comm const& comm) {
  ComparedSides sides;
  sides.a.path = request.a;
  sides.b.path = request.b;
  sides.a.checkpoint = open_by_job(request.a, request.job_a.get(), {}, comm);
  sides.b.checkpoint = open_by_job(request.b, request.job_b.get(), {}, comm);
  if (!request.job_a && request.by_records) follow_adapter(sides.a, sides.b, sides.notes, comm);
  if (!request.job_b && request.by_records) follow_adapter(sides.b, sides.a, sides.notes, comm);
  std::vector<ReadingChoice> choices;
  together_seeing(comm, [&] { choices = reading_choices(request, sides); });
  // The comparison is the same with and without a prefix that a record states.
  sides.a.terms = choices.back().a;
  sides.b.terms = choices.back().b;
  if (!request.adapter.empty()) add_adapter(sides.a.checkpoint, request.adapter, comm);
  if (request.adapter.empty() && !request.weights_only && !request.job_a && !request.job_b)
    read_rank_states(sides, comm);
  for (ComparedSide* side : {&sides.a, &sides.b})
    add_inputs(side->checkpoint, side->changes, request.library, comm);
  for (ComparedSide* side : {&sides.a, &sides.b})
    if (side->recorded_rows > 0) side->checkpoint.logical.vocab = side->recorded_rows;
  together_seeing(comm, [&] {
    bool const values = request.comparison == Comparison::values;
    bool const by_map = request.terms_a.map != "none" && request.terms_b.map != "none";
    bool const quantised = !values && by_map && match_quantised_target(sides, request);
    if (!quantised) {
      open_catalogues(request, choices, sides);
      match_casts(sides, values);
    }
    ModelDescription a;
    ModelDescription b;
    with_option_words("--config-a", [&] {
      a = describe_model(sides.a.checkpoint, sides.a.terms.config, request.library);
    });
    with_option_words("--config-b", [&] {
      b = describe_model(sides.b.checkpoint, sides.b.terms.config, request.library);
    });
    for (auto const& [side, described] : {std::pair(&sides.a, &a), std::pair(&sides.b, &b)})
      if (auto const& changed = side->catalogue.changed) {
        if (!described->config.is_null())
          described->config = huggingface::patched_config(described->config, changed->config);
        if (!described->args.is_null())
          described->args = huggingface::patched_config(described->args, changed->args);
      }
    sides.configs = compare_configs(a, b, request.library);
    if (quantised) {
      auto differences = quant_config_differences(sides);
      std::ranges::move(differences, std::back_inserter(sides.configs.differences));
    }
    HeaderMembers headers = compare_header_members(sides.a.checkpoint, sides.b.checkpoint);
    std::ranges::move(headers.differences, std::back_inserter(sides.configs.differences));
    if (!headers.others.empty())
      sides.notes.push_back(fmt::format(
          "__metadata__ of the headers differs in {}, which {} no tensor",
          listed(headers.others, 4), agreeing(headers.others.size(), "describes", "describe")));
  });
  for (ComparedSide const* side : {&sides.a, &sides.b}) {
    if (!side->checkpoint.run.newer_saves.empty())
      sides.notes.push_back(side->checkpoint.run.newer_saves);
    if (!side->catalogue.listing.prefix_note.empty())
      sides.notes.push_back(side->path.string() + ": " + side->catalogue.listing.prefix_note);
  }
  for (std::string const& warning : sides.a.catalogue.warnings)  // of b, copies are read
    if (warning != sides.a.checkpoint.run.newer_saves) sides.notes.push_back(warning);
  return sides;
}

std::string not_compared(ComparedSide const& side, bool by_names) {
  Checkpoint const& checkpoint = side.checkpoint;
  StateInventory const state = checkpoint.format->inventory(checkpoint, view_of(side));
  std::vector<std::string> parts;
  std::size_t objects = checkpoint.stored.objects.size();
  for (ModuleStates const& states : checkpoint.shares.module_states)
    objects += states.entries->size();
  if (objects > 0)
    parts.push_back(fmt::format("{} that {}", counted(objects, "object"),
                                agreeing(objects, "is not a tensor", "are not tensors")));
  if (state.optimizer.form == StateForm::by_layout && !by_names)
    parts.emplace_back("optimizer state that is bound to its layout");
  if (state.optimizer.form == StateForm::in_model_files) parts.emplace_back("optimizer state");
  if (state.rng.form == StateForm::in_model_files) parts.emplace_back("random-generator state");
  return listed(parts);
}

}  // namespace reshard
