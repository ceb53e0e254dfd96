#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "pipeline/verify/compare/compare.hpp"
#include "stages/plan/config/config_comparison.hpp"
#include "stages/plan/job_plan.hpp"

namespace reshard {

/// One of the two checkpoints: its headers, and its pieces in the numbering of its own model.
struct ComparedSide {
  std::filesystem::path path;
  Checkpoint checkpoint;
  JobPlan catalogue;
  PlanRequest request;  ///< with which the catalogue was made
  ReadingTerms terms;   ///< as given, and as records say
  std::string
      made_dtype;  ///< target.dtype of its job, by its own manifest; "" where dtypes were
                   ///< kept, where that is not known, and where the other side is made of it
  std::optional<Manifest> quantised_by;  ///< of a job with target.quant; nothing where there was
                                         ///< none, and where the other side is made of it
  ModelChanges changes;     ///< of the job that made the other side of this one, by its manifest
  Index recorded_rows = 0;  ///< of the vocabulary, by the own manifest of a checkpoint that pads it
};

struct ComparedSides {
  ComparedSide a;
  ComparedSide b;
  bool by_names = false;                ///< logical tensors are stored ones
  std::filesystem::path without_state;  ///< the side that was made of the other without its
                                        ///< optimizer, by its record; empty for none
  ConfigComparison configs;
  std::vector<std::string> notes;
};

/// Opens both in terms of one set of logical tensors. With map "auto" that is the stored ones where
/// both sides have the same, else those of a map; where no map reads both, the stored ones again if
/// both sides have whole tensors. Terms that were not given are those that a record states: of how
/// its target is read, and of how its source was. Where one side is quantised and the other is not,
/// the first has the values that its codes stand for. Collective.
ComparedSides open_sides(CompareRequest const& request, Comm const& comm);

/// Parts of a checkpoint that no comparison covers: "12 opaque objects, optimizer state"; "" for
/// none.
std::string not_compared(ComparedSide const& side, bool by_names);

}  // namespace reshard
