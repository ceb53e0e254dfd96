#include "core/containers/hdf5/child/call_filter.hpp"

namespace reshard::hdf5 {

bool can_filter_calls() { return false; }

bool allow_only_reading(int) { return false; }

bool forbid_paths() { return false; }

}  // namespace reshard::hdf5
