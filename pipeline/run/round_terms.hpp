#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/plan.hpp"
#include "core/plan/schedule.hpp"
#include "stages/stream/stream.hpp"

namespace reshard {

/// What the cutting of a planned job into rounds depends on. Borrows the plan and its views.
struct RoundTerms {
  Plan const& plan;
  std::span<SourceView const> views;
  std::size_t source_files = 0;          ///< views are numbered after them
  std::uint64_t memory_bytes = 0;        ///< run.memory
  std::uint64_t round_memory_bytes = 0;  ///< what a round may count on, on host and device
  std::uint64_t most_staging_bytes = 0;  ///< of a round, as it was planned (PlanLimits)
  bool exchanging = false;
  bool on_device = false;
  int rank = 0;
  int ranks = 1;
};

/// The cells that this rank writes.
CellRange own_cells(RoundTerms const& terms);
/// Who reads which source file, views included, where ranks exchange.
std::vector<int> readers_of_files(RoundTerms const& terms);
/// The arena: what the job states, or less when this rank has less to do. Fresh memory costs time.
std::uint64_t arena_bytes(RoundTerms const& terms);
/// The same of a rank that has these cells.
std::uint64_t arena_bytes(RoundTerms const& terms, CellRange cells);
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
/// The rounds of this rank. Borrows the plan.
RoundSource rounds_of(RoundTerms const& terms);
/// Payload of these cells.
std::uint64_t target_bytes_of(Plan const& plan, CellRange cells);

}  // namespace reshard
