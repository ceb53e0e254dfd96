#pragma once

#include <string>
#include <string_view>

#include "core/base/file.hpp"

namespace reshard::hdf5 {

/// What a child may use.
struct ChildLimits {
  std::uint64_t more_memory_bytes = std::uint64_t{2}
                                    << 30U;  ///< beyond what the process has when it forks
  unsigned cpu_seconds = 60;
  unsigned wall_seconds =
      600;  ///< long: most of it is waiting for the file system, which is no fault of the file
  std::uint64_t answer_bytes = std::uint64_t{1} << 30U;
};

/// Called in the child, which has no descriptors but the file's and prints nothing; what it
/// returns, or the Error that it throws, is handed to the parent. It makes no MPI call, starts no
/// thread, and does nothing that allow_only_reading() (call_filter.hpp) forbids.
using ChildWork = std::string (*)(File const& file);

/// Runs `work` in a forked child and returns its answer. An Error of kind source that `work` throws
/// is thrown here too; a crash, a forbidden system call, too much processor time or memory, or an
/// answer that is not complete is an Error of kind source that names the file; too much time in all
/// is one of kind io. The answer is what a process said that hostile bytes may have taken over:
/// check it.
std::string ask_child(File const& file, ChildWork work, ChildLimits const& limits = {});

/// For `work`, once it has opened all it needs: the child can open nothing more.
void open_no_more_files();

}  // namespace reshard::hdf5
