#include "pipeline/run/path/chosen_io.hpp"

#include <algorithm>
#include <string>

#include "core/base/tables/integers.hpp"
#include "core/base/text/text.hpp"
#include "core/base/threads/activity.hpp"
#include "core/io/io_engines.hpp"
#include "pipeline/run/job_choices.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Threads beyond these tell no more of an engine.
constexpr std::size_t most_trial_threads = 4;

std::string rates_text(IoTrial const& trial) {
  std::string text;
  for (EngineRate const& rate : trial.rates)
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", rate.engine,
                    rate.bytes_per_second == 0
                        ? "cannot"
                        : human_bytes(static_cast<std::uint64_t>(rate.bytes_per_second)) + "/s");
  return text;
}

/// On rank 0.
void try_engines(JobRun const& run, PlannedJob const& job, fs::path const& folder,
                 ChosenIo& chosen) {
  std::size_t const threads = std::clamp<std::size_t>(job.threads, 1, most_trial_threads);
  std::uint64_t const bytes = trial_bytes_for(source_file_bytes(job.source));
  std::vector<std::uint64_t> sizes;
  for (FileStamp const& stamp : job.source.stamps.taken)
    sizes.push_back(narrow<std::uint64_t>(stamp.bytes));
  chosen.read_trial = try_reading(std::vector<fs::path>(job.source.files), sizes, threads, bytes);
  chosen.read = chosen.read_trial.chosen;
  run.progress.note(fmt::format(
      "reading with {} ({:.0f} % of the source lie in the page cache{})", chosen.read,
      100 * chosen.read_trial.cached_share,
      chosen.read_trial.rates.empty() ? "" : ", trial: " + rates_text(chosen.read_trial)));
  if (is_by_library(run.spec)) return;
  chosen.write_trial = try_writing(folder, threads, bytes);
  chosen.write = chosen.write_trial.chosen;
  run.progress.note(
      fmt::format("writing with {} (trial: {})", chosen.write, rates_text(chosen.write_trial)));
}

/// The engine that rank 0 names.
std::string_view engine_of_rank_0(Comm const& comm, std::string_view name) {
  std::vector<std::string> const names = comm.all_gather(std::string(name));
  auto const found = std::ranges::find(io_engines(), names.front(), &IoEngine::name);
  RESHARD_EXPECT(found != io_engines().end());
  return found->name;
}

}  // namespace

ChosenIo choose_io(JobRun const& run, PlannedJob& job, fs::path const& folder) {
  ChosenIo chosen;
  chosen.read = chosen.write = job.source_io->name();
  if (run.spec.run.io != IoChoice::automatic ||
      source_file_bytes(job.source) < run.context.io_trial.least_job_bytes)
    return chosen;
  begin_phase("trying ways to read and write");
  together(run.comm, [&] {
    if (run.comm.rank() == 0) try_engines(run, job, folder, chosen);
  });
  chosen.read = engine_of_rank_0(run.comm, chosen.read);
  chosen.write = engine_of_rank_0(run.comm, chosen.write);
  if (chosen.read == job.source_io->name()) return chosen;
  job.source_io = make_file_io(chosen.read);
  job.sources = std::make_unique<FileSet>(job.source.files, FileSet::Access::read,
                                          FileSet::usual_open_limit(), job.source_io);
  return chosen;
}

}  // namespace reshard
