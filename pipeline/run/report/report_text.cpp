#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "core/base/files/file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/shown_name.hpp"
#include "core/base/text/text.hpp"
#include "pipeline/run/report/report_figures.hpp"

namespace reshard {
namespace {

/// So short that all phases fit into a line of a usual terminal: milliseconds of less than a
/// second, else seconds.
std::string seconds_text(double seconds, double total) {
  if (total < 1) return fmt::format("{:.0f}", seconds * 1000);
  return fmt::format("{:.{}f}", seconds, seconds < 9.95 ? 1 : 0);
}

/// Lines of a report: a word, and what is to be said of it.
class Lines {
 public:
  explicit Lines(RunReport const& report, ReportDetail detail) : r_(report), detail_(detail) {}

  std::string take() { return std::move(out_); }

  void both_ends() {
    std::string const save = of("source.save").is_null() ? "" : text("source.save") + ", ";
    line("source", fmt::format("{}: {}, {}{}", r_.job.source.path, text("source.format"), save,
                               text("source.layout")));
    line("target", fmt::format("{}: {}, {} in {}{}", r_.job.target.path, name(r_.job.target.format),
                               bytes("plan.target_bytes"), many("plan.target_files", "file"),
                               r_.replaces ? "; replaces what is there" : ""));
    if (!text("map").empty()) line("map", text("map"));
    if (!text("parts").empty()) line("parts", text("parts"));
    line("tensors", fmt::format("{} logical; {} stored in {} -> {} stored; {} not read{}",
                                n("plan.logical_tensors"), n("plan.source_tensors"),
                                many("plan.source_files", "file"), n("plan.target_tensors"),
                                many("plan.replicas_not_read", "replica"), left_out()));
    if (r_.job.target.dtype != TargetDType::keep || !r_.dtype_changes.empty()) dtypes();
    for (std::string const& note : r_.trained_padding) line("padding", note);
    std::uint64_t const state = n("plan.state_bytes");
    if (state == 0) return;
    std::uint64_t const read = n("plan.payload_read_bytes");  // masters may be made of weights
    std::uint64_t const all = read <= state ? n("plan.payload_written_bytes") : read;
    line("state", fmt::format("{} of optimizer state ({}), {} of other tensors", human_bytes(state),
                              fmt::join(words("plan.states"), ", "),
                              human_bytes(all - std::min(all, state))));
  }

  /// The planned work, and its needs.
  void plan() {
    line("plan", fmt::format("reads {}, writes {}, in {} on {}", bytes("plan.payload_read_bytes"),
                             bytes("plan.payload_written_bytes"), many("plan.rounds", "round"),
                             many("ranks", "rank")));
    if (full())
      line("  copies",
           fmt::format("{}, transport {}", many("plan.regions", "region"), text("plan.transport")));
    if (full() && r_.per_rank && n("ranks") > 1) per_rank(*r_.per_rank);
    std::string const device = text("plan.device");
    if (full() || device != "host")
      line("device", fmt::format("{}: {}",
                                 device == "host"   ? "host memory"
                                 : device == "cuda" ? "GPU"
                                                    : "emulated GPU",
                                 text("plan.device_reason")));
    phrases("memory");
    phrases("disk");
    if (r_.interrupted) line("interrupted", interrupted_text(*r_.interrupted));
    if (n("since.usable_files") > 0)
      line("incremental",
           fmt::format("{}: up to {} in {} can be taken over unchanged{}",
                       r_.job.target.incremental_from, bytes("since.usable_bytes"),
                       many("since.usable_files", "file"),
                       n("since.unread_bytes") == 0
                           ? ""
                           : ", " + bytes("since.unread_bytes") +
                                 " of the source are not read: both have recorded the tensors"));
  }

  /// The bytes that were moved.
  void data() {
    if (n("run.earlier_runs") > 0)
      line("resumed", fmt::format("{} were written by {}", bytes("run.bytes_reused"),
                                  many("run.earlier_runs", "earlier run")));
    std::uint64_t const written = n("run.bytes_written");
    double const copied = seconds("run.seconds.copy");
    line("data",
         phrases_of(r_, "data") + (written == 0 || copied <= 0
                                       ? ""
                                       : ", at " + rate_text(written, copied, unit_of(written))));
    if (full()) calls();
    if (text("plan.device") != "host") phrases("gpu");
    if (n("since.usable_files") > 0) unchanged();
  }

  void proof() {
    std::uint64_t const masters = n("run.masters_compared");
    if (masters + n("run.moments_compared") > 0)
      line("optimizer",
           fmt::format("{}; second moments of {} are finite and not negative",
                       masters > 0
                           ? fmt::format("master weights of {} round to their weights exactly",
                                         counted(masters, "tensor"))
                           : "no master weights beside weights",
                       many("run.moments_compared", "tensor")));
    if (r_.self_check)
      line("self-check", fmt::format("{}, {:.2f} s", self_check_summary(*r_.self_check),
                                     seconds("run.self_check.seconds")));
    std::string digest = text("run.total_digest");
    if (digest.empty()) return;
    std::uint64_t const read_back = n("run.bytes_verified");
    std::uint64_t const reused = n("run.since.file_bytes_reused");
    if (read_back > 0) digest += ", verified: " + human_bytes(read_back) + " read back";
    if (reused > 0)
      digest += fmt::format(", {}: files of the previous target, which were not read again",
                            human_bytes(reused));
    if (read_back + reused == 0) digest += ", of the source; the target was not read back";
    if (n("run.bytes_shared") > 0)
      digest += fmt::format("; {} cloned and not read, with the digests that the source recorded",
                            bytes("run.bytes_shared"));
    line("digest", digest);
  }

  void cost() {
    line("peak memory", fmt::format("{} used by the largest of {}", bytes("run.peak_memory_bytes"),
                                    many("ranks", "rank")));
    double const total = seconds("run.seconds.total");
    auto const of_phase = [&](std::string_view key) { return seconds_text(seconds(key), total); };
    line("time", fmt::format("{} {}: headers {}, plan {}, copy {}, verify {}, publish {}",
                             seconds_text(total, total), total < 1 ? "ms" : "s",
                             of_phase("run.seconds.headers"), of_phase("run.seconds.plan"),
                             of_phase("run.seconds.copy"), of_phase("run.seconds.verify"),
                             of_phase("run.seconds.publish")));
    if (!full()) return;
    stage("read", r_.stages[0]);
    stage("rearrange", r_.stages[1]);
    stage("write", r_.stages[2]);
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
  /// A line that the table of figures composes.
  void phrases(std::string_view key) { line(key, phrases_of(r_, key)); }

  Json of(std::string_view key) const { return r_.figures.value(key); }
  std::uint64_t n(std::string_view key) const { return r_.figures.count(key); }
  double seconds(std::string_view key) const { return r_.figures.seconds(key); }
  std::string text(std::string_view key) const { return r_.figures.text(key); }
  std::vector<std::string> words(std::string_view key) const {
    std::vector<std::string> all;
    Json const list = of(key);
    for (Json const& word : *list.items()) all.push_back(*word.text());
    return all;
  }
  std::string bytes(std::string_view key) const { return human_bytes(n(key)); }
  std::string many(std::string_view key, std::string_view noun) const {
    return counted(n(key), noun);
  }

  /// The changes of target.dtype and target.quant.
  void dtypes() {
    std::vector<std::string> changes;
    for (DTypeChange const& change : r_.dtype_changes)
      changes.push_back(fmt::format("{} {} -> {} ({})", counted(change.tensors, "tensor"),
                                    name(change.from), name(change.to), listed_names(change)));
    line("dtype", changes.empty() ? "no tensor needs another one"
                                  : fmt::format("{}", fmt::join(changes, "; ")));
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
         fmt::format("{} in {}{}", bytes("run.bytes_read"), many("run.read_calls", "call"),
                     n("run.earlier_runs") > 0 ? ""
                                               : fmt::format(", {:.3f} times what the model needs",
                                                             read_amplification(r_))));
    line("  written", fmt::format("{} in {}, {:.3f} times what the target needs; write mode {}",
                                  bytes("run.bytes_written"), many("run.write_calls", "call"),
                                  write_amplification(r_), text("run.write_mode")));
    if (n("run.bytes_cloned") > 0)
      line("  cloned",
           fmt::format("{} in {}", bytes("run.bytes_cloned"), many("run.clone_calls", "call")));
    line("  moved", fmt::format("{} in memory, {} sent between ranks", bytes("run.bytes_copied"),
                                bytes("run.bytes_exchanged")));
  }

  void unchanged() {
    std::string const verified = text("run.since.oldest_verified");
    line("unchanged",
         fmt::format("{} not written again; {}, {}, taken over complete{}",
                     bytes("run.since.bytes_kept"), many("run.since.files_reused", "file"),
                     bytes("run.since.file_bytes_reused"),
                     verified.empty() ? "" : ", last read back on " + verified + " or later"));
    std::vector<std::string> const names = words("run.since.changed");
    std::uint64_t const all = n("run.since.tensors_changed");
    line("changed", fmt::format("{}{}{}", counted(all, "tensor"), all == 0 ? "" : ": ",
                                listed(names, names.size())) +
                        (all > names.size() ? ", …" : ""));
  }

  /// Stages work side by side: the rate of one is over the seconds in which it worked.
  void stage(std::string_view word, StageReport const& stage) {
    double const busy_of_all = stage.busy_seconds;
    line(fmt::format("  {}", word),
         fmt::format("{}, busy {:.2f} s ({}), waiting {:.2f} s", human_bytes(stage.bytes),
                     busy_of_all, rate_text(stage.bytes, busy_of_all, unit_of(stage.bytes)),
                     stage.stall_seconds));
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
