#pragma once

#include <string>
#include <vector>

#include "core/formats/targets/target.hpp"
#include "core/formats/targets/target_job.hpp"

namespace reshard::huggingface {

/// adapter_config.json of a target of peft: that which came with the adapter, byte for byte, else
/// one that is made from the ranks of the tensors and request.read.lora_alpha. `names` are the
/// stored names of `side`. Errors: an alpha that nothing states (usage), ranks that differ from
/// those that the file states (source).
std::string adapter_config_text(MappedTarget const& job, Side const& side,
                                std::vector<StoredName> const& names);

}  // namespace reshard::huggingface
