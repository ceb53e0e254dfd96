#include "pipeline/verify/own_cells.hpp"

#include <algorithm>

#include "core/base/threads/activity.hpp"
#include "core/plan/cells/cell_cuts.hpp"
#include "core/plan/cells/round_sizes.hpp"
#include "core/plan/cells/schedule.hpp"
#include "stages/stream/stream.hpp"

namespace reshard {

void stream_own_cells(OwnCells const& cells, FileSet& sources, ExtentSink& sink, Comm const& comm) {
  CellRange const mine = cells_of_rank(cells.plan, comm.rank(), comm.size());
  StreamOptions options;
  options.threads = cells.threads;
  options.memory_bytes = staging_arena_bytes(cells.plan, mine, cells.memory_bytes);
  options.views = cells.views;
  std::uint64_t const round_bytes =
      std::min(usual_round_bytes, limits_for(cells.memory_bytes).staging_bytes);
  std::uint64_t const all = target_bytes_of(cells.plan, mine);
  std::uint64_t done = 0;
  options.finished = [&](FinishedRound const& round) {
    advance_phase(done += target_bytes_of(cells.plan, round.cells), all);
  };
  stream(comm, options, sources, sink, direct_rounds(cells.plan, mine, round_bytes));
}

}  // namespace reshard
