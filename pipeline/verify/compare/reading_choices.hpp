#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pipeline/verify/compare/compare_sides.hpp"

namespace reshard {

/// A way to read both sides, and notes that say where its terms come from.
struct ReadingChoice {
  ReadingTerms a;
  ReadingTerms b;
  std::vector<std::string> notes = {};
  int turn = 0;  ///< among those that read by maps
};

/// Ways to read the sides: by the given terms alone; and completed by records: of a side as the
/// source of the other, or else as a target of its own job; and by the record of a target whose
/// source lay elsewhere. Notes in `sides` the rows of the vocabulary that records state. Looks
/// through Sight.
std::vector<ReadingChoice> reading_choices(CompareRequest const& request, ComparedSides& sides);

/// Job that made `other` out of `side`, if it merged, left out or took alone the adapter of a model
/// that peft has wrapped; else nullopt. Looks through Sight.
std::optional<JobSpec> recorded_adapter_job(ComparedSide const& side, ComparedSide const& other);

}  // namespace reshard
