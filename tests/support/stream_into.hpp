#pragma once

#include "stages/stream/stream.hpp"
#include "stages/write/extent_writer.hpp"

namespace reshard {

/// stream() into files.
inline StreamStats stream_into(Comm const& comm, StreamOptions const& options, FileSet& sources,
                               FileSet& targets, RoundSource const& next_round,
                               WriteObserver const& observer) {
  ExtentWriter writer(targets, observer);
  return stream(comm, options, sources, writer, next_round);
}

}  // namespace reshard
