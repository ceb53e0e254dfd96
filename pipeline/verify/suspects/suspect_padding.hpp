#pragma once

#include <string>
#include <vector>

#include "pipeline/verify/digest.hpp"
#include "stages/verify/surveys/suspect_rules.hpp"

namespace reshard {

struct PaddingFindings {
  std::vector<Suspect> suspects;
  std::vector<std::string> notes;  ///< sentences about what is expected of some programs
};

/// Reads the rows that a checkpoint stores behind its vocabulary. All zero is what most programs
/// write there. Rows of which each has values are noted: Megatron trains the rows that it pads
/// with, and its converter repeats the last row. Some rows with values and some without are
/// suspects. `catalogue`: that of the true rows. Collective. Errors: source, io.
PaddingFindings look_at_padding(Checkpoint const& checkpoint, JobPlan const& catalogue,
                                DigestQuery query, std::uint64_t memory_bytes, std::size_t threads,
                                Comm const& comm);

}  // namespace reshard
