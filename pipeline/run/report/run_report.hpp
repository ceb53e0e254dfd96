#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/targets/left_out.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/publication/claim/interrupted_run.hpp"
#include "pipeline/run/path/rank_loads.hpp"
#include "pipeline/verify/self_check/self_check.hpp"
#include "stages/plan/target_dtype.hpp"

namespace reshard {

/// The work of one of the stages that go on side by side. Seconds are the mean over the ranks;
/// stall is waiting for another stage, for memory or for another rank.
struct StageReport {
  std::uint64_t bytes = 0;  ///< of all ranks
  double busy_seconds = 0;
  double stall_seconds = 0;
};

/// The figures of a job, each by its place in the JSON document: "run.bytes_read". The table in
/// report_figures.cpp lists the keys; another one is an internal Error.
class Figures {
 public:
  void set(std::string_view key, Json value);

  /// A number of things or bytes; 0 where it was not set.
  std::uint64_t count(std::string_view key) const;
  /// 0 where it was not set.
  double seconds(std::string_view key) const;
  /// "" where it was not set.
  std::string text(std::string_view key) const;
  /// Of any type: 0, 0.0, "" or null where it was not set.
  Json value(std::string_view key) const;

 private:
  std::map<std::string, Json, std::less<>> values_;
};

/// The report of a job, done or planned.
struct RunReport {
  JobSpec job;
  bool planned_only = false;
  std::optional<Error> refusal;  ///< with planned_only: the error with which the job would end
                                 ///< before it writes anything
  Figures figures;
  std::vector<std::string> warnings;
  std::vector<DTypeChange> dtype_changes;    ///< of weights
  LeftOut left_out;                          ///< of the source, by the map
  std::vector<std::string> trained_padding;  ///< sentences: rows behind the vocabulary that have
                                             ///< values, all of them, and are left out
  std::optional<RankLoads> per_rank;         ///< with planned_only
  bool replaces = false;  ///< with planned_only: a run would remove what is at target.path
  std::optional<InterruptedRun> interrupted;  ///< with planned_only: what a run would find
  std::array<StageReport, 3> stages;          ///< read, exchange (copy, convert, send), write
  std::optional<SelfCheckResult> self_check;  ///< with run.self_check
};

/// One JSON document, keys in a fixed order.
Json report_json(RunReport const& report);

/// Readable lines, the last with a newline. `brief` says what was done and whether it is right, in
/// at most `brief_report_lines` lines; `full` also how it was planned, where time went, and the
/// job's keys.
enum class ReportDetail { brief, full };
constexpr int brief_report_lines = 15;
std::string report_text(RunReport const& report, ReportDetail detail);

}  // namespace reshard
