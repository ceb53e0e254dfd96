#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/cells/hand_out.hpp"
#include "core/plan/cells/rank_parts.hpp"
#include "core/plan/cells/schedule.hpp"
#include "core/plan/plan.hpp"
#include "stages/stream/stream.hpp"

namespace reshard {

/// Terms by which a planned job is cut into rounds. Borrows the plan and its views.
struct RoundTerms {
  Plan const& plan;
  std::span<SourceView const> views;
  std::size_t source_files = 0;          ///< views are numbered after them
  std::uint64_t memory_bytes = 0;        ///< run.memory
  std::uint64_t round_memory_bytes = 0;  ///< what a round may count on, on host and device
  std::uint64_t most_staging_bytes = 0;  ///< of a round, as it was planned (PlanLimits)
  bool exchanging = false;
  bool on_device = false;
  bool handing_out = false;  ///< ranks may do cells of others (run.work_stealing)
  int rank = 0;
  int ranks = 1;
};

/// The cells of all ranks, in parts that others may do; where none are handed out, one part for
/// each rank.
RankParts parts_of(RoundTerms const& terms);
/// The cells that are this rank's by plan.
CellRange own_cells(RoundTerms const& terms);
/// The readers of each source file, views included, where ranks exchange.
std::vector<int> readers_of_files(RoundTerms const& terms);
/// The arena: what the job states, or less when this rank has less to do. Fresh memory costs time.
std::uint64_t arena_bytes(RoundTerms const& terms);
/// The same of a rank that does these cells.
std::uint64_t arena_bytes(RoundTerms const& terms, CellRange cells);
/// Bytes of the arena for the largest part; 0 where no parts are handed out.
std::uint64_t arena_bytes_of_parts(RoundTerms const& terms);
/// How many rounds each rank takes part in.
std::vector<std::uint64_t> rounds_of_ranks(RoundTerms const& terms);
/// The rounds of all ranks together; where bytes are exchanged every rank takes part in all of
/// them.
std::uint64_t count_rounds(RoundTerms const& terms);
/// How much staging memory this rank takes, and how many rounds there are.
struct RoundCounts {
  std::uint64_t arena_bytes = 0;
  std::uint64_t rounds = 0;
};
RoundCounts counts_of(RoundTerms const& terms);
/// The rounds of this rank, of its cells by plan. Borrows the plan.
RoundSource rounds_of(RoundTerms const& terms);

/// The rounds of the parts that a rank gets, where ranks do not exchange. Used by one thread.
/// Borrows what it is given.
class PartRounds {
 public:
  PartRounds(RoundTerms const& terms, RankParts const& parts, HandOut& hand_out);
  std::optional<RoundWork> next();
  /// Whether next() asks for another part.
  bool is_between_parts() const { return left_.empty(); }

 private:
  Plan const& plan_;
  RankParts const& parts_;
  HandOut& hand_out_;
  std::uint64_t round_bytes_;
  CellRange left_;  ///< of the part
  RoundSource of_part_;
};

}  // namespace reshard
