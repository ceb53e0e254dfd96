#pragma once

#include <vector>

#include "core/base/text/json.hpp"
#include "core/formats/megatron/state/flat_buffer.hpp"

namespace reshard::megatron {

/// The properties of a rank's model chunk on which its buckets depend.
struct FlatChunk {
  bool first = true;        ///< the first chunk of the first pipeline stage
  Index rank_elements = 0;  ///< of all parameters of the rank
};

/// The rules by which a save may have placed the parameters of a chunk, most likely first. Args
/// contain the options of a run, not its release.
std::vector<FlatRule> flat_rules(Json const& args, FlatChunk const& chunk);

/// "overlap_grad_reduce = true, ddp_bucket_size = 1500": the args about buckets, for messages.
std::string flat_rule_text(Json const& args);

}  // namespace reshard::megatron
