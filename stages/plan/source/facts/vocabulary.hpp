#pragma once

#include <optional>

#include "core/formats/format.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// The vocabulary's rows that mean something. Those of the source's own record
/// (LogicalTable::vocab), where some of the rows that are there are padding by it; else those of
/// args, when they agree with the rows that are there; else nothing. An Error of kind source: sizes
/// whose product no program has.
std::optional<Index> recorded_vocab(Checkpoint const& source, SourceModel const& read);

/// The rows that a job between Megatron layouts carries: those that are there, as far as the target
/// has room for them. Rows past the true size are padding that cannot be distinguished from
/// weights, so they are dropped only where the target's padding is shorter. Errors of kind usage: a
/// model.true_vocab_size that would lose rows.
Index carried_vocab(Checkpoint const& source, PlanRequest const& request, SourceModel const& read);

/// Writes model.true_vocab_size where the source's args and the config.json that the target gets
/// count the vocabulary, with a warning for the latter. To be called when both are settled.
void state_vocabulary(PlanRequest const& request, SourceModel& read);

/// Writes it into settings of a run that are copied along (run_config.yaml). 0: changes nothing.
void restate_vocabulary(Index vocab, TargetDraft& draft);

/// An Error where the model's vocabulary has more rows than the embedding.
void check_vocab(Checkpoint const& source, PlanRequest const& request, SourceModel const& read);

}  // namespace reshard
