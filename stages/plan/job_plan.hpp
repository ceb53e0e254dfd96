#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/formats/format.hpp"
#include "core/formats/left_out.hpp"
#include "core/formats/source_model.hpp"
#include "core/formats/target.hpp"
#include "core/plan/unread.hpp"
#include "stages/plan/target_dtype.hpp"

namespace reshard {

/// Everything that is decided before data moves: the same on every rank.
struct JobPlan : TargetDraft {
  std::unique_ptr<Model> model;
  std::string map_name;       ///< the family's map, "" for none
  bool stored_names = false;  ///< logical tensors are the source's stored ones
  Index vocab = 0;            ///< with stored names: LogicalTable::vocab of a Megatron source
  Json named_config;          ///< with stored names: config.json of the target's reference, else
                              ///< the source's; null for none
  Json model_config;  ///< config.json of the source's model, stated or made from its args; null
                      ///< for none, and with stored names
  bool incomplete = false;               ///< SourceModel::incomplete, and so is the target
  std::optional<StatedChanges> changed;  ///< SourceModel::changed
  Catalog source;
  std::optional<Catalog> weights;  ///< the source before master weights took the place of weights
                                   ///< (Catalog::masters); nothing where they did not
  /// Inputs of computed weights beside the source, for records: members "adapter" and "average";
  /// null for none.
  Json made_with;
  std::vector<int> adds;  ///< of catalogue(): what stored values of the source have over logical
                          ///< ones (Side::adds); empty: nothing
  std::vector<std::optional<DType>> casts;  ///< of catalogue(): dtypes that the source's map states
                                            ///< (Side::casts); empty: none
  Index padded_vocab = 0;  ///< of catalogue(): rows that the files have of the vocabulary, padding
                           ///< included; 0 where no format pads
  /// Tensors that the target holds in the bytes of another, and that one (shared_matrices.hpp):
  /// they are no tensors of the plan.
  std::vector<std::pair<TensorId, TensorId>> same_as;
  /// Where names are kept: stored tensors that by the config beside the target are copies of others
  /// (a tied output layer), and these.
  std::vector<std::pair<TensorId, TensorId>> declared_copies;
  std::optional<DType> cast;               ///< what target.dtype means; nothing: dtypes stay
  std::vector<DTypeChange> dtype_changes;  ///< of weights, by target.dtype or by a map
  DTypeChanges quantised;                  ///< weights that target.quant makes codes of
  Plan plan;
  /// Bytes that the plan leaves unread, and the digests of their tensors (Plan::unread), by
  /// DigestId.
  UnreadBytes unread;
  std::vector<std::uint64_t> recorded;
  std::string parts;                 ///< SourceModel::parts
  LeftOut left_out;                  ///< of the source
  bool left_out_by_prefix = false;   ///< so are stored tensors that source.prefix does not name
  std::string prefix_note;           ///< of catalogue(): FoundPrefix::note; "" where none was found
  std::vector<PaddingRows> padding;  ///< likewise, behind the vocabulary
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

/// How a catalogue has the weights of a checkpoint whose weights are the master weights.
enum class Masters {
  as_stored,
  apart,  ///< as masters, and rounded as weights
  both,   ///< as masters and as weights, unrounded
};

/// The source's side alone: model, map and source catalogue, for listings. Optimizer and
/// random-generator state are no obstacle.
JobPlan catalogue(Checkpoint const& source, PlanRequest const& request,
                  Masters masters = Masters::as_stored);

/// The same; names and tensors as they are stored, with a warning, where the map does not describe
/// how weights are quantised.
JobPlan catalogue_as_stored(Checkpoint const& source, PlanRequest const& request);

}  // namespace reshard
