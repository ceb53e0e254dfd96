#include "pipeline/run/run_context.hpp"

namespace reshard {

void check_stop(JobRun const& run, std::string_view when) {
  if ((run.context.stop != nullptr && *run.context.stop) || run.progress.stop())
    fail(ErrorKind::interrupted,
         "stopped by a signal {}. Nothing was published: run the same command again to resume.",
         when);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace reshard
