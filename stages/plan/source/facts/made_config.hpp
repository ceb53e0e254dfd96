#pragma once

#include "core/formats/format.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// Makes StatedFacts::config from args, with a warning for what they do not state. Errors: usage (a
/// family that cannot do so), source (settings that lack what the family needs).
void make_config(Checkpoint const& source, PlanRequest const& request, SourceModel& read);

/// Args that say something: those that are made of settings have null where these say nothing.
Json args_that_say(Checkpoint const& source, Json const& all);

/// The rows of the vocabulary that args count (Facts of a Model; 0: as they say), where a
/// config.json has `by_config`: it may leave out the token that only Megatron's null tokenizer has.
Index vocab_of_args_beside(Json const& by_config, Checkpoint const& source,
                           PlanRequest const& request, SourceModel const& read);

/// Two descriptions of one model, config.json and args, must agree on every axis that both have:
/// an Error of kind source where they do not.
void compare_facts(Checkpoint const& source, PlanRequest const& request, SourceModel const& read);

}  // namespace reshard
