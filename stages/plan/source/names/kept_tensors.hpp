#pragma once

#include <string>
#include <vector>

#include "core/formats/format.hpp"
#include "core/formats/stored_view.hpp"
#include "core/formats/targets/target.hpp"
#include "core/mapping/maps/map_library.hpp"

namespace reshard {

/// The treatment of the parts of a model that are no part of its language model.
struct SettledParts {
  TrainerNames source;  ///< of a source with Megatron's names
  TrainerNames target;  ///< of a target with Megatron's names
  std::string note;     ///< for people, without a dot; "" where there are no such parts
};

/// Deals with the stored tensors of a source that the family's map lists under `keep`, or a trainer
/// names by its `kept`: a vision tower. By request they are left unread, or refused (Error of kind
/// usage), or carried: with the axes that the map's entries for them have, else as logical tensors
/// of their own; in Megatron's files beside the embedding, under the names of the trainer that is
/// wanted there. `config`: of the model; may be null. Call before the model is made: it changes the
/// maps.
SettledParts settle_unmapped(MapChoice& maps, Checkpoint const& source, StoredView const& view,
                             Json const& config, PlanRequest const& request,
                             std::vector<std::string>& warnings);

/// Adds what `from` carries by settle_unmapped() to another map of the same job.
void add_kept(MapFile const& from, MapFile& to);

/// Deals with the weights of a DCP source whose keys do not begin with source.prefix: they are
/// counted and named in a warning. In Megatron's formats, or where the family's `keep` fits one,
/// they are parts of the same model: an Error of kind usage, unless they are left out by request.
void settle_unread(MapChoice const& maps, StoredView const& view, bool megatron,
                   PlanRequest const& request, std::vector<std::string>& warnings);

}  // namespace reshard
