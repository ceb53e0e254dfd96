#pragma once

#include <string>

#include "core/containers/dcp/metadata/metadata.hpp"

namespace reshard::dcp {

/// Adds what another `.metadata` says, as of one checkpoint: its files are numbered behind those of
/// `to`. `place`: the other file, for messages. A key of both is an Error of kind source.
void join_metadata(Metadata& to, Metadata const& more, std::string const& place);

}  // namespace reshard::dcp
