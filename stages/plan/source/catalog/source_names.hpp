#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/format.hpp"
#include "core/formats/targets/target.hpp"
#include "core/mapping/sides/side.hpp"

namespace reshard {

/// Marks in `found` the tensors of which the source holds a stored tensor; `stored` says whether a
/// name is there.
void note_found(Model const& model, Side const& side, std::vector<StoredName> const& names,
                std::function<bool(std::string const&)> const& stored, std::vector<bool>& found);

/// Tensors that the model may lack by the map of `side` and of which the source holds no stored
/// tensor are no part of the model. A condition in `optional` sees only what the source holds.
/// Says whether the model lacks more than before.
bool settle_optional(Model& model, Side const& side, std::vector<bool> const& found);

/// The weight in whose module a tensor stands that no entry explains, as scales of a quantised
/// weight do; "" for none, for an adapter's part, and for a name beyond the sizes of the model.
std::string weight_beside(std::string const& tensor, std::vector<StoredName> const& names);

/// The Error about a stored tensor that no entry of the maps explains. `map_names`: "qwen3.toml",
/// "mcore.toml and qwen3.toml"; `method` is of quantised_by().
[[noreturn]] void fail_unexplained(std::string const& file, std::string const& tensor,
                                   std::vector<StoredName> const& names, Model const& model,
                                   std::string const& map_names, std::string const& method = {});

/// Whether a matrix of this dtype has codes, which mean nothing without scales.
bool is_of_codes(DType dtype);

/// An Error of kind source when a stored tensor's shape or dtype is not what its entry says.
/// `other_form` gives other_form_words() of the tensor, or "" where nothing stands beside it.
void check_stored(std::string const& file, std::string const& tensor, DType dtype,
                  std::vector<Index> const& shape, std::vector<Index> const& expected,
                  Side const& side, std::uint32_t entry, Model const& model,
                  std::function<std::string()> const& other_form);

/// "39 stored tensors such as 'vision_model.a' do not begin with 'language_model.'
/// (source.prefix)".
std::string unread_note(std::vector<std::string> const& names, std::string const& prefix);

/// Every stored tensor that may be a weight: its name, without its prefix, and its shape in the
/// file. Those of many ranks' files that have both in common are visited once.
void each_stored(Checkpoint const& source, StoredView const& view,
                 std::function<void(std::string const&, std::vector<Index> const&)> const& visit);

/// The map of the names that every source of its format has. Errors of kind usage: what no target
/// of this job has a form for.
MapFile own_names(Checkpoint const& source, StoredView const& view, PlanRequest const& request);

}  // namespace reshard
