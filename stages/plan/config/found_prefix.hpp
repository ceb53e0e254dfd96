#pragma once

#include <optional>
#include <string>

#include "core/formats/checkpoint.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// The prefix before the model's own names in those of a DCP source, where none is stated.
struct FoundPrefix {
  std::string prefix;
  std::string note;  ///< a sentence without its dot
};

/// The asker: a job that would lose tensors without the prefix, or a look at the weights.
enum class PrefixUse { job, look };

/// The only prefix behind which a source has the names that its config.json asks for. Nothing where
/// it has them without one, where the names are kept for a target that may have any, where no
/// config.json is known, or where a job would lose other tensors than single values. Several that
/// fit are an Error of kind source that lists them. Reads config.json, through Sight.
std::optional<FoundPrefix> found_prefix(Checkpoint const& source, PlanRequest const& request,
                                        bool keeps_names, PrefixUse use);

}  // namespace reshard
