#pragma once

#include <string>
#include <string_view>

#include "core/base/files/file.hpp"

namespace reshard::hdf5 {

/// The limits of a child process.
struct ChildLimits {
  std::uint64_t more_memory_bytes = std::uint64_t{2}
                                    << 30U;  ///< beyond the memory of the process when it forks
  unsigned cpu_seconds = 60;
  unsigned wall_seconds = 600;  ///< long, as most of it is waiting for the file system
  std::uint64_t answer_bytes = std::uint64_t{1} << 30U;
};

/// Called in the child, which has no descriptors but the file's and prints nothing; its result or
/// its Error is passed to the parent. It must not call MPI, start a thread, or make a call that
/// allow_only_reading() (call_filter.hpp) forbids.
using ChildWork = std::string (*)(File const& file);

/// Runs `work` in a forked child and returns its answer. An Error of kind source that `work` throws
/// is thrown here too; a crash, a forbidden system call, too much processor time or memory, or an
/// answer that is not complete is an Error of kind source that names the file; too much time in all
/// is one of kind io. The answer must be checked: hostile bytes may have taken over the child.
std::string ask_child(File const& file, ChildWork work, ChildLimits const& limits = {});

/// To be called by `work` once it has opened all its files: the child can open none after that.
void open_no_more_files();

}  // namespace reshard::hdf5
