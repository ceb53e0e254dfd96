#pragma once

#include <span>

namespace reshard {

/// The name of a subcommand and what follows it. The exit code; Errors are printed by main().
using Words = std::span<char* const>;

int probe_dcp(Words words);
int probe_dcp_item(Words words);
int probe_hdf5(Words words);
int probe_safetensors(Words words);
int probe_torch_file(Words words);
int probe_views(Words words);

}  // namespace reshard
