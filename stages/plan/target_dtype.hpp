#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/formats/source_model.hpp"
#include "core/formats/targets/target.hpp"
#include "core/formats/targets/target_job.hpp"

namespace reshard {

/// Tensors whose dtype a job changes: how many, and the first names.
struct DTypeChange {
  DType from = DType::f32;
  DType to = DType::bf16;
  std::size_t tensors = 0;
  std::vector<std::string> names;  ///< at most dtype_change_names
};
inline constexpr std::size_t dtype_change_names = 3;

/// Counts tensors by the dtypes that they have and get.
class DTypeChanges {
 public:
  void add(DType from, DType to, std::string const& name);
  /// In the order of the dtypes.
  std::vector<DTypeChange> list() const;

 private:
  std::map<std::pair<DType, DType>, DTypeChange> changes_;
};
/// "a, b, c, …".
std::string listed_names(DTypeChange const& change);

/// The dtype that config.json states for the weights: "dtype" or "torch_dtype", its own or that of
/// text_config. nullopt where it states none; an unknown word is an Error of kind source.
std::optional<DType> stated_dtype(Json const& config, std::string const& place);

/// The dtype that target.dtype asks for in a job whose source is read through maps; nullopt to keep
/// dtypes.
/// Errors of kind usage: "as-config" without a stated dtype.
std::optional<DType> asked_dtype(PlanRequest const& request, Checkpoint const& source,
                                 SourceModel const& read);

/// Gives the floating weights of a model that was read through maps the dtype that the job asks
/// for: in `dtypes`, by logical tensor. Parts of quantised weights, optimizer state, and what the
/// maps say stays F32 keep theirs. Returns which tensors are stored with another dtype.
std::vector<bool> cast_weights(SourceModel const& read, Model const& model, Catalog const& source,
                               DType wanted, std::vector<std::optional<DType>>& dtypes);

/// The weights whose dtype changes between source and target, of a job that is laid out. `cast` as
/// cast_weights() gave it. `notes` gets warnings: of changes that a map states, and of floating
/// weights that keep another dtype than the one that was asked for.
std::vector<DTypeChange> dtype_changes(Model const& model, Catalog const& source,
                                       Catalog const& target, std::vector<bool> const& cast,
                                       std::optional<DType> asked, std::vector<std::string>& notes);

/// The casts of a job that keeps names.
struct NamedCasts {
  std::optional<DType> dtype;  ///< that is asked for; nothing: dtypes stay
  std::vector<DTypeChange> changes;
  std::vector<std::string> warnings;  ///< about those that keep theirs
};
/// The same for such a job: those of `tensors` that change have the wanted dtype then, and theirs
/// as `stored`. A target of any objects leaves single numbers as they are. `files` are the model's.
NamedCasts cast_named(std::vector<NamedTensor>& tensors, Checkpoint const& source,
                      PlanRequest const& request, std::optional<huggingface::Folder> const& files);

/// States the dtype of the weights in every config.json of a target.
void state_dtype(DType dtype, TargetDraft& draft);

}  // namespace reshard
