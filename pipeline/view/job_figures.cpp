#include "pipeline/view/job_figures.hpp"

#include <set>

#include "core/base/files/file.hpp"
#include "pipeline/run/path/rank_loads.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t largest_report_bytes = 64U << 20;

/// A positive number of a report, or 0.
double number_at(Json const& report, std::initializer_list<std::string_view> keys) {
  Json const* at = &report;
  for (std::string_view const key : keys)
    if (at = at->find(key); at == nullptr) return 0;
  if (std::int64_t const* whole = at->integer()) return static_cast<double>(*whole);
  return at->real() == nullptr ? 0 : *at->real();
}

/// Bytes take as long as those of the earlier run did: copied by what was written, read back by
/// what was read back.
Json expected_time(RunReport const& report, std::filesystem::path const& measured) {
  Json const earlier =
      parse_json(read_text_file(measured, largest_report_bytes), measured.string());
  double const written = number_at(earlier, {"run", "bytes_written"});
  double const copy = number_at(earlier, {"run", "seconds", "copy"});
  if (written <= 0 || copy <= 0)
    fail(ErrorKind::usage,
         "--measured {}: has no run.bytes_written and run.seconds.copy above 0, so it is no report "
         "of a run that wrote something. Give a file that `reshard run job.toml --json` printed.",
         measured.string());
  double const rate = written / copy;
  double const verified = number_at(earlier, {"run", "bytes_verified"});
  double const verify = number_at(earlier, {"run", "seconds", "verify"});
  double const copy_seconds =
      static_cast<double>(report.figures.count("plan.payload_written_bytes")) / rate;
  Json result;
  result.set("copy_seconds", copy_seconds).set("copy_bytes_per_second", rate);
  if (report.job.run.verify == VerifyChoice::written && verified > 0 && verify > 0)
    result
        .set("verify_seconds",
             static_cast<double>(report.figures.count("plan.target_bytes")) / (verified / verify))
        .set("verify_bytes_per_second", verified / verify);
  return result.set("measured", measured.string())
      .set("measured_ranks", static_cast<std::int64_t>(number_at(earlier, {"ranks"})))
      .set("measured_bytes", static_cast<std::int64_t>(written));
}

}  // namespace

Json job_figures(RunReport const& report, RoundTerms const& terms,
                 std::vector<std::string> const& hosts, std::filesystem::path const& measured) {
  RankLoads const loads = rank_loads(terms);
  SentBytes const sent = sent_bytes(terms, hosts);
  Json result;
  result.set("ranks", terms.ranks)
      .set("hosts", hosts.empty()
                        ? Json()
                        : Json(std::uint64_t{std::set(hosts.begin(), hosts.end()).size()}))
      .set("read_bytes", report.figures.value("plan.payload_read_bytes"))
      .set("written_bytes", report.figures.value("plan.payload_written_bytes"))
      .set("exchanging", terms.exchanging)
      .set("sent_bytes", sent.in_all)
      .set("sent_between_hosts", hosts.empty() ? Json() : Json(sent.between_hosts));
  result.set("busiest_rank", loads.written_bytes.busiest)
      .set("per_rank", loads_json(loads))
      .set("planned_memory_bytes", report.figures.value("plan.planned_memory_bytes"));
  if (!measured.empty()) result.set("expected", expected_time(report, measured));
  return result;
}

}  // namespace reshard
