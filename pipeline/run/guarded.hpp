#pragma once

#include <functional>
#include <initializer_list>

#include "core/transport/comm.hpp"
#include "pipeline/publication/claim/staged_target.hpp"
#include "pipeline/run/checks/source_watch.hpp"

namespace reshard {

/// Runs `work` on a staged target. After an error of these kinds the next run goes on with what is
/// there; after any other it is removed. Every rank enters.
void guarded(StagedTarget& target, SourceWatch const& watch, Comm const& comm,
             std::initializer_list<ErrorKind> resumable, std::function<void()> const& work);

/// Runs `work` while what the caller holds is still there: an error that no step has agreed upon
/// ends the job before anything of it is given up, for other ranks may still be at work. Every rank
/// enters.
void end_together(Comm const& comm, std::function<void()> const& work);

}  // namespace reshard
