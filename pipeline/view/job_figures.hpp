#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "pipeline/run/path/round_terms.hpp"
#include "pipeline/run/report/run_report.hpp"

namespace reshard {

/// The numbers of a planned job that people look for first, for its page: what is read, written and
/// sent between ranks, the busiest rank, the memory of a rank. `hosts`: of the ranks, or none where
/// they are not known. `measured`: a report of `run --json`, whose rates give the expected seconds;
/// empty: no time is given, because none is known. Errors of kind usage: no such report.
Json job_figures(RunReport const& report, RoundTerms const& terms,
                 std::vector<std::string> const& hosts, std::filesystem::path const& measured);

}  // namespace reshard
