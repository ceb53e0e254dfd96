#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/stored_view.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// How the warning begins that state of generators is left out without being asked.
inline constexpr std::string_view rng_stays_behind =
    "random-generator state is dropped, because it belongs to the old layout";

/// Whether optimizer and random-generator state go from this source into such a target.
bool carries_state(Checkpoint const& source, PlanRequest const& request);

/// State in the source that the target cannot hold ends the job with an Error of kind source,
/// unless the request says to drop it: then a warning says so. Nothing but headers is read.
void check_state(Checkpoint const& source, StoredView const& view, PlanRequest const& request,
                 std::vector<std::string>& warnings);

/// The same of optimizer state that is beside the tensors in a form that nothing reads, for a job
/// that keeps stored names: it is in no tensor that such a job copies.
void check_unread_state(Checkpoint const& source, PlanRequest const& request,
                        std::vector<std::string>& warnings);

}  // namespace reshard
