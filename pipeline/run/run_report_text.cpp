#include <algorithm>
#include <utility>

#include "core/base/counted.hpp"
#include "core/base/file.hpp"
#include "core/base/shown_name.hpp"
#include "core/base/text.hpp"
#include "pipeline/run/run_report.hpp"

namespace reshard {
namespace {

std::string rate(std::uint64_t bytes, double seconds) {
  if (seconds <= 0) return "-";
  return fmt::format("{:.2f} GiB/s", static_cast<double>(bytes) / (1U << 30U) / seconds);
}

/// Lines of a report: a word, and what is to be said of it.
class Lines {
 public:
  explicit Lines(RunReport const& report, ReportDetail detail) : r_(report), detail_(detail) {}

  std::string take() { return std::move(out_); }

  void both_ends() {
    line("source",
         fmt::format("{}: {}, {}{}", r_.job.source.path, r_.source_format,
                     r_.source_save.empty() ? "" : r_.source_save + ", ", r_.source_layout));
    line("target", fmt::format("{}: {}, {} in {}", r_.job.target.path, name(r_.job.target.format),
                               human_bytes(r_.target_bytes), counted(r_.target_files, "file")));
    if (!r_.map.empty()) line("map", r_.map);
    if (!r_.parts.empty()) line("parts", r_.parts);
    line("tensors",
         fmt::format("{} logical; {} stored in {} -> {} stored; {} not read{}", r_.logical_tensors,
                     r_.source_tensors, counted(r_.source_files, "file"), r_.target_tensors,
                     counted(r_.replicas_not_read, "replica"), left_out()));
    for (std::string const& note : r_.trained_padding) line("padding", note);
    if (r_.state_bytes > 0)
      line("state", fmt::format("{} of optimizer state ({}), {} of other tensors",
                                human_bytes(r_.state_bytes), fmt::join(r_.states, ", "),
                                human_bytes(r_.payload_read - r_.state_bytes)));
  }

  /// What will be done, and what it needs.
  void plan() {
    line("plan", fmt::format("reads {}, writes {}, in {} on {}", human_bytes(r_.payload_read),
                             human_bytes(r_.payload_written), counted(r_.rounds, "round"),
                             counted(r_.ranks, "rank")));
    if (full())
      line("  copies",
           fmt::format("{}, transport {}", counted(r_.regions, "region"), r_.transport));
    if (full() && r_.per_rank && r_.ranks > 1) per_rank(*r_.per_rank);
    if (full() || r_.device != "host")
      line("device", fmt::format("{}: {}",
                                 r_.device == "host"   ? "host memory"
                                 : r_.device == "cuda" ? "GPU"
                                                       : "emulated GPU",
                                 r_.path_reason));
    line("memory",
         fmt::format("at most {} per rank for staging, {} for the program and the plan",
                     human_bytes(r_.staging_bytes), human_bytes(r_.planned_memory_bytes)));
    line("disk", fmt::format("{} needed, {} free", human_bytes(r_.target_bytes),
                             human_bytes(r_.free_bytes)));
    if (r_.interrupted) line("interrupted", interrupted_text(*r_.interrupted));
    if (r_.since_files > 0)
      line("since",
           fmt::format("{}: up to {} in {} can be taken over unchanged{}", r_.job.target.since,
                       human_bytes(r_.since_bytes), counted(r_.since_files, "file"),
                       r_.since_unread_bytes == 0
                           ? ""
                           : ", " + human_bytes(r_.since_unread_bytes) +
                                 " of the source are not read: both have recorded the tensors"));
  }

  /// What was moved.
  void data() {
    if (r_.earlier_runs > 0)
      line("resumed", fmt::format("{} were written by {}", human_bytes(r_.bytes_reused),
                                  counted(r_.earlier_runs, "earlier run")));
    std::string moved = fmt::format("{} read, {} written", human_bytes(r_.bytes_read),
                                    human_bytes(r_.bytes_written));
    if (r_.bytes_cloned > 0)
      moved += fmt::format(", {} cloned from the source", human_bytes(r_.bytes_cloned));
    if (r_.bytes_exchanged > 0)
      moved += fmt::format(", {} sent between ranks", human_bytes(r_.bytes_exchanged));
    if (r_.bytes_handed_out > 0)
      moved += fmt::format(", {} of it for slower ranks", human_bytes(r_.bytes_handed_out));
    line("data", moved);
    if (full()) calls();
    if (r_.device != "host")
      line("gpu",
           fmt::format("{}: {} to it, {} from it, at most {} of its memory per rank",
                       r_.device_name, human_bytes(r_.bytes_uploaded),
                       human_bytes(r_.bytes_downloaded), human_bytes(r_.device_memory_bytes)));
    if (r_.since_files > 0) unchanged();
  }

  void proof() {
    if (r_.masters_compared + r_.moments_compared > 0)
      line("optimizer",
           fmt::format("{}; second moments of {} are finite and not negative",
                       r_.masters_compared > 0
                           ? fmt::format("master weights of {} round to their weights exactly",
                                         counted(r_.masters_compared, "tensor"))
                           : "no master weights beside weights",
                       counted(r_.moments_compared, "tensor")));
    if (r_.self_check)
      line("self-check",
           fmt::format("{}, {:.2f} s", self_check_summary(*r_.self_check), r_.self_check_seconds));
    if (r_.total_digest.empty()) return;
    std::string text = r_.total_digest;
    if (r_.bytes_verified > 0)
      text += ", verified: " + human_bytes(r_.bytes_verified) + " read back";
    if (r_.file_bytes_reused > 0)
      text += fmt::format(", {}: files of the previous target, which were not read again",
                          human_bytes(r_.file_bytes_reused));
    if (r_.bytes_verified + r_.file_bytes_reused == 0)
      text += ", of the source; the target was not read back";
    if (r_.bytes_shared > 0)
      text += fmt::format("; {} cloned and not read, with the digests that the source recorded",
                          human_bytes(r_.bytes_shared));
    line("digest", text);
  }

  void cost() {
    line("peak memory", fmt::format("{} used by the largest of {}",
                                    human_bytes(r_.peak_memory_bytes), counted(r_.ranks, "rank")));
    std::string text = fmt::format(
        "{:.2f} s: headers {:.2f}, plan {:.2f}, copy {:.2f} ({}), read back {:.2f}, "
        "publish {:.2f}",
        r_.total_seconds, r_.header_seconds, r_.plan_seconds, r_.stream_seconds,
        rate(r_.bytes_written, r_.stream_seconds), r_.verify_seconds, r_.commit_seconds);
    line("time", text);
    if (!full()) return;
    stage("read", r_.read);
    stage("rearrange", r_.exchange);
    stage("write", r_.write);
  }

  void keys() {
    std::string_view key = "job";
    for (std::string const& changed : changed_keys(r_.job)) line(std::exchange(key, ""), changed);
  }

  bool full() const { return detail_ == ReportDetail::full; }

 private:
  void line(std::string_view key, std::string const& value) {
    out_ += fmt::format("{:<12}{}\n", key, value);
  }

  /// By `drop` of the map or of the job; "" for nothing.
  std::string left_out() const {
    constexpr std::size_t most_names = 2;
    LeftOut const& left = r_.left_out;
    if (left.tensors == 0) return "";
    std::string names;
    for (std::size_t i = 0; i < std::min(left.names.size(), most_names); ++i)
      names += (i == 0 ? "" : ", ") + shown_name(left.names[i]);
    return fmt::format("; {} ({}) left out (drop): {}{}", counted(left.tensors, "stored tensor"),
                       human_bytes(left.bytes), names, left.names.size() > most_names ? ", …" : "");
  }

  /// The least, the mean and the most of any rank.
  void per_rank(RankLoads const& loads) {
    auto const bytes = [&](std::string_view word, RankSpread const& spread) {
      line(fmt::format("  {}", word),
           fmt::format("{} to {} per rank, {} on average", human_bytes(spread.least),
                       human_bytes(spread.most), human_bytes(spread.mean)));
    };
    bytes("reads", loads.read_bytes);
    bytes("writes", loads.written_bytes);
    bytes("staging", loads.staging_bytes);
    line("  rounds", fmt::format("{} to {} per rank, {} on average", loads.rounds.least,
                                 loads.rounds.most, loads.rounds.mean));
  }

  void calls() {
    line("  read",
         fmt::format("{} in {}{}", human_bytes(r_.bytes_read), counted(r_.read_calls, "call"),
                     r_.earlier_runs > 0 ? ""
                                         : fmt::format(", {:.3f} times what the model needs",
                                                       read_amplification(r_))));
    line("  written", fmt::format("{} in {}, {:.3f} times what the target needs; write mode {}",
                                  human_bytes(r_.bytes_written), counted(r_.write_calls, "call"),
                                  write_amplification(r_), r_.write_mode));
    if (r_.bytes_cloned > 0)
      line("  cloned",
           fmt::format("{} in {}", human_bytes(r_.bytes_cloned), counted(r_.clone_calls, "call")));
    line("  moved", fmt::format("{} in memory, {} sent between ranks", human_bytes(r_.bytes_copied),
                                human_bytes(r_.bytes_exchanged)));
  }

  void unchanged() {
    line("unchanged", fmt::format("{} not written again; {}, {}, taken over complete{}",
                                  human_bytes(r_.bytes_kept), counted(r_.files_reused, "file"),
                                  human_bytes(r_.file_bytes_reused),
                                  r_.reused_verified.empty()
                                      ? ""
                                      : ", last read back on " + r_.reused_verified + " or later"));
    line("changed", fmt::format("{}{}{}", counted(r_.tensors_changed, "tensor"),
                                r_.tensors_changed == 0 ? "" : ": ",
                                listed(r_.changed_tensors, r_.changed_tensors.size())) +
                        (r_.tensors_changed > r_.changed_tensors.size() ? ", …" : ""));
  }

  /// Stages work side by side: the rate of one is over the seconds in which it worked.
  void stage(std::string_view word, StageReport const& stage) {
    double const busy_of_all = stage.busy_seconds;
    line(fmt::format("  {}", word),
         fmt::format("{}, busy {:.2f} s ({}), waiting {:.2f} s", human_bytes(stage.bytes),
                     busy_of_all, rate(stage.bytes, busy_of_all), stage.stall_seconds));
  }

  RunReport const& r_;
  ReportDetail detail_;
  std::string out_;
};

}  // namespace

std::string report_text(RunReport const& report, ReportDetail detail) {
  Lines lines(report, detail);
  lines.both_ends();
  if (report.planned_only || lines.full()) lines.plan();
  if (report.planned_only) return lines.take();
  lines.data();
  lines.proof();
  lines.cost();
  if (lines.full()) lines.keys();
  return lines.take();
}

}  // namespace reshard
