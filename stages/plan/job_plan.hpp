#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/formats/format.hpp"
#include "core/formats/source_model.hpp"
#include "core/formats/targets/left_out.hpp"
#include "core/formats/targets/target.hpp"
#include "core/plan/equal/unread.hpp"
#include "stages/plan/target_dtype.hpp"

namespace reshard {

/// Dtypes that a job changes.
struct PlannedDtypes {
  std::optional<DType> cast;         ///< by target.dtype; nothing: dtypes stay
  std::vector<DTypeChange> changes;  ///< of weights, by target.dtype or by a map
  DTypeChanges quantised;            ///< weights that target.quant makes codes of
};

/// Tensors with the bytes of others: pairs of a copy and that one.
struct TensorCopies {
  /// In the target (shared_matrices.hpp): they are no tensors of the plan.
  std::vector<std::pair<TensorId, TensorId>> same_as;
  /// Where names are kept: by the config beside the target (a tied output layer).
  std::vector<std::pair<TensorId, TensorId>> declared;
};

/// Facts about a source's stored tensors, for listings (catalogue()).
struct ListingFacts {
  std::vector<int> adds;  ///< what stored values of the source have over logical ones (Side::adds);
                          ///< empty: nothing
  std::vector<std::optional<DType>> casts;  ///< dtypes that the source's map states (Side::casts);
                                            ///< empty: none
  Index padded_vocab = 0;   ///< rows that the files have of the vocabulary, padding included; 0
                            ///< where no format pads
  std::string prefix_note;  ///< FoundPrefix::note; "" where none was found
  std::vector<PaddingRows> padding;  ///< rows behind the vocabulary
};

/// Parts of the family or of the source that the job does not have.
struct AbsentParts {
  bool incomplete = false;  ///< SourceNames::incomplete, and so is the target
  std::string parts;        ///< SourceNames::parts
  LeftOut left_out;         ///< of the source
  bool by_prefix = false;   ///< so are stored tensors that source.prefix does not name
};

/// config.json of the two sides.
struct PlannedConfigs {
  Json named;  ///< with stored names: that of the target's reference, else the source's; null for
               ///< none
  Json model;  ///< of the source's model, stated or made from its args; null for none, and with
               ///< stored names
};

/// Everything that is decided before data moves: the same on every rank.
struct JobPlan : TargetDraft {
  std::unique_ptr<Model> model;
  std::string map_name;       ///< the family's map, "" for none
  bool stored_names = false;  ///< logical tensors are the source's stored ones
  Index vocab = 0;            ///< with stored names: LogicalTable::vocab of a Megatron source
  PlannedConfigs configs;
  std::optional<StatedChanges> changed;  ///< SourceModel::changed
  AbsentParts absent;
  Catalog source;
  std::optional<Catalog> weights;  ///< the source before master weights took the place of weights
                                   ///< (Catalog::masters); nothing where they did not
  /// Inputs of computed weights beside the source, for records: members "adapter" and "average";
  /// null for none.
  Json made_with;
  ListingFacts listing;
  TensorCopies copies;
  PlannedDtypes dtypes;
  Plan plan;
  /// Bytes that the plan leaves unread, and the digests of their tensors (Plan::unread), by
  /// DigestId.
  UnreadBytes unread;
  std::vector<std::uint64_t> recorded;
};

/// Finds the maps, builds both catalogues, joins them. Pure except for reading maps, the reference
/// folder and one source file's pickle. Errors: usage (sizes that do not fit, unknown map), source
/// (unexplained or missing tensors), resources. `tensors_read` is called when nothing of the
/// source's tensors and chunks is needed any more: StoredTable::forget_tensors() is allowed in it.
/// Where the map does not describe how weights are quantised (Error::is_of_unknown_form()) and the
/// target can have the stored names, these are kept, with a warning.
JobPlan make_job_plan(
    Checkpoint const& source, PlanRequest const& request, PlanLimits const& limits,
    std::function<void()> const& tensors_read = [] {});

}  // namespace reshard
