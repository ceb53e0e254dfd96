#pragma once

#include <cstdint>
#include <span>

#include "core/io/file_set.hpp"
#include "core/plan/plan.hpp"
#include "core/transport/comm.hpp"
#include "stages/write/extent_sink.hpp"

namespace reshard {

/// A plan whose cells each rank reads and hands to a sink itself, as its limits_for() allow.
struct OwnCells {
  Plan const& plan;
  std::span<SourceView const> views;  ///< of the source's catalogue
  std::uint64_t memory_bytes = 0;     ///< of staging
  std::size_t threads = 1;            ///< of each stage
};

/// This rank's cells. Not collective: for the inside of together(). Errors: those of stream().
void stream_own_cells(OwnCells const& cells, FileSet& sources, ExtentSink& sink, Comm const& comm);

}  // namespace reshard
