#pragma once

#include <span>
#include <string>

#include "core/formats/targets/target.hpp"
#include "core/mapping/sides/side.hpp"

namespace reshard {

/// Makes a Hugging Face target describe its quantised weights, from the stored names of the whole
/// plan: every module of every layer, every expert under its global number. Changes config.json
/// among the job's texts, and hf_quant_config.json, which takes the place of a sidecar of that
/// name.
///
/// Nothing is quantised: neither mentions it. ModelOpt's schemes: a description that is true of the
/// modules stays, byte for byte. Otherwise both are rewritten; they keep what they said of other
/// things, and modules that they excluded and that are not quantised. Other schemes: a
/// quantization_config that is there stays as it is; without one it is made, or the job is refused
/// where that cannot be done (Error of kind usage). `known`: the quantization_config of the source,
/// where the job has no reference folder; null for none. `inner`: the member of config.json that
/// describes the language model, "" for none, with dots where it lies deeper; a quantization_config
/// in it counts where the top level has none. `of_source`: the description came with these weights,
/// and may be silent about a layer that no quantiser looks at, such as a router.
void describe_quantised(TargetDraft& job, Model const& model, Side const& side,
                        std::span<StoredName const> names, Json const& known,
                        std::string const& inner = {}, bool of_source = false);

}  // namespace reshard
