#include "pipeline/run/guarded.hpp"

#include <algorithm>

#include "core/base/capture.hpp"

namespace reshard {

void guarded(StagedTarget& target, SourceWatch const& watch, Comm const& comm,
             std::initializer_list<ErrorKind> resumable, std::function<void()> const& work) {
  auto const error = capture(work);
  if (!error) return;
  Error const reason = target.explained(*error);
  // A target that was made of another source is useless to the next run.
  bool const changed =
      error->is_agreed() ? comm.max(watch.has_changed() ? 1 : 0) != 0 : watch.has_changed();
  target.keep(!changed &&
              std::find(resumable.begin(), resumable.end(), error->kind()) != resumable.end());
  throw reason;
}

void end_together(Comm const& comm, std::function<void()> const& work) {
  if (auto const error = capture(work)) comm.end_with(*error);
}

}  // namespace reshard
