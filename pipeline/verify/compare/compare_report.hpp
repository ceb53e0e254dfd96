#pragma once

#include <span>

#include "pipeline/verify/compare/compare.hpp"
#include "pipeline/verify/compare/compare_match.hpp"

namespace reshard {

/// All that a comparison found.
struct CompareFindings {
  CompareRequest const* request = nullptr;
  ComparedSides const* sides = nullptr;  ///< after match_sides()
  MatchedSides const* matched = nullptr;
  std::span<TensorStats const> stats;  ///< by part of a's model (parts_of())
};

/// Whether nothing differs: values, replicas of b, and what headers say.
bool is_same(CompareFindings const& findings);

Json compare_json(CompareFindings const& findings);
std::string compare_text(CompareFindings const& findings);

}  // namespace reshard
