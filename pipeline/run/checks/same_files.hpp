#pragma once

#include <cstdint>
#include <set>

#include "core/formats/checkpoint.hpp"
#include "core/io/file_set.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/run/path/round_terms.hpp"

namespace reshard {

/// The files of the source that this rank reads in its rounds: a view stands for those of its
/// stored tensors.
std::set<std::uint32_t> files_to_read(RoundTerms const& terms);

/// A rank that reads another file than the one whose header was read would write wrong values: it
/// checks its files before anything is written, and again whenever it opens one. `files` are the
/// source's, and stay open as far as there is room. Error: source. Collective.
void check_same_files(Checkpoint const& source, FileSet& files, RoundTerms const& terms,
                      Comm const& comm);

}  // namespace reshard
