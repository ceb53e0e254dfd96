#pragma once

#include "core/transport/comm.hpp"
#include "pipeline/verify/checkpoint_query.hpp"

namespace reshard {

/// `reshard extract PATH --serve`: the reader process of reshard.open() of the Python module. It
/// reads headers and maps once, and answers requests on a socket until the other process closes it
/// (docs/python-reader.md). Errors before the first answer: those of extract_tensors(); usage where
/// `descriptor` is no socket, or there are several ranks. A request that fails is answered with its
/// error, and the next one is waited for.
void serve_arrays(CheckpointQuery const& query, int descriptor, Comm const& comm);

}  // namespace reshard
