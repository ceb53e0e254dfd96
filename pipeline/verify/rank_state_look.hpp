#pragma once

#include <filesystem>
#include <optional>

#include "core/base/error.hpp"
#include "core/formats/format.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// Optimizer state in files of single ranks.
struct RankStateLook {
  std::optional<Checkpoint> opened;  ///< with it, where it is readable
  std::optional<Error> fault;        ///< why it is not; nothing where there is none
};

/// Opens a checkpoint that was opened without such state again, with it. Collective. Errors: all
/// but those of kind source.
RankStateLook look_at_rank_states(std::filesystem::path const& path, Checkpoint const& checkpoint,
                                  Comm const& comm);

}  // namespace reshard
