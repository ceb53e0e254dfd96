#include "core/formats/targets/target_options.hpp"

#include <utility>

namespace reshard {
namespace {

template <class Part>
void add(FormatOptions<TargetOptions>& all, Part TargetOptions::*part, FormatOptions<Part> rows) {
  for (auto& [formats, row] : rows)
    all.push_back({std::move(formats), keys::within(part, std::move(row))});
}

}  // namespace

FormatOptions<TargetOptions> all_target_options() {
  FormatOptions<TargetOptions> all;
  add(all, &TargetOptions::huggingface, huggingface::target_options());
  add(all, &TargetOptions::hdf5, hdf5::target_options());
  add(all, &TargetOptions::dcp, dcp::target_options());
  add(all, &TargetOptions::named, megatron::adapter_options());
  add(all, &TargetOptions::dist, dcp::dist_options());
  add(all, &TargetOptions::named, megatron::name_options());
  add(all, &TargetOptions::megatron, megatron::target_options());
  return all;
}

}  // namespace reshard
