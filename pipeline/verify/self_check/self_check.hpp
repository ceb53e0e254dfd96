#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/verify/compare/compare.hpp"

namespace reshard {

/// Which elements of b are compared with those of a.
struct SelfCheckRequest {
  CompareRequest sides;        ///< a, b and how their tensors are understood
  std::uint64_t elements = 0;  ///< of every stored tensor of b; one that has fewer: all
  std::uint64_t seed = 1;      ///< the same seed takes the same elements, on any number of ranks
  std::set<std::string>
      changed;  ///< logical tensors whose values the job computes (merged adapters)
};

/// The result of a self-check; sums over the ranks.
struct SelfCheckResult {
  std::uint64_t elements_per_tensor = 0;
  std::uint64_t seed = 0;
  std::uint64_t tensors = 0;      ///< stored ones of b, of which elements were compared
  std::uint64_t elements = 0;     ///< compared
  std::uint64_t converted = 0;    ///< of these, through a cast, a rounding, an addend or a scale
  std::uint64_t padding = 0;      ///< drawn and of no tensor
  std::uint64_t computed = 0;     ///< drawn and not compared: merged, packed below a byte
  std::uint64_t unplaced = 0;     ///< drawn and not compared: a has no such value
  std::uint64_t not_covered = 0;  ///< stored tensors of b of which nothing was compared
  std::vector<std::string> not_covered_names;  ///< the first of them
  std::uint64_t wrong = 0;
  std::vector<std::string> faults;  ///< the first wrong elements, a sentence each
  std::string why_not;              ///< why nothing could be compared; "" where something could
  ErrorKind why_kind = ErrorKind::usage;  ///< what kind of error that is
  bool understood = false;  ///< nothing could be compared, and the maps and configs are right

  bool sound() const { return wrong == 0; }
};

/// Reads `elements` random elements of each stored tensor of b, and of each the value in a at the
/// place that core/layout/pieces/element_place gives it: from names, shapes and layout parameters,
/// element by element, without anything of a plan. Collective. Errors: source, io; self_check where
/// a header's shape is not that of its rule.
SelfCheckResult self_check(SelfCheckRequest const& request, Comm const& comm);

Json self_check_json(SelfCheckResult const& result);
/// Lines that each end with a newline.
std::string self_check_text(SelfCheckResult const& result);
/// One sentence without its dot: what was compared, and what was not.
std::string self_check_summary(SelfCheckResult const& result);

}  // namespace reshard
