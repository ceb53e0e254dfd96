#include "pipeline/run/report/report_figures.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/files/file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "pipeline/run/system_facts.hpp"

namespace reshard {
namespace {

/// Bytes that were moved for each byte that had to be; 1 is the least.
double amplification(std::uint64_t moved, std::uint64_t payload) {
  return payload == 0 ? 0 : static_cast<double>(moved) / static_cast<double>(payload);
}

}  // namespace

double read_amplification(RunReport const& r) {
  return amplification(r.figures.count("run.bytes_read"),
                       r.figures.count("plan.payload_read_bytes"));
}

double write_amplification(RunReport const& r) {
  std::uint64_t moved = 0;
  for (char const* key :
       {"run.bytes_written", "run.bytes_cloned", "run.since.bytes_kept", "run.bytes_reused"})
    moved += r.figures.count(key);
  return amplification(moved, r.figures.count("plan.payload_written_bytes"));
}

namespace {

enum class Unit { count, bytes, seconds, text, words, any };
/// How what each rank has becomes one figure: it is the same everywhere, or rank 0's counts.
enum class OverRanks { same, sum, most };

/// A job before anything is written.
struct Planned {
  JobSpec const& spec;
  PlannedJob const& job;
};

using P = Planned const&;
using W = WrittenJob const&;
using R = RunReport const&;

/// Where a figure is from. One without a source is set while the job runs.
struct Source {
  std::function<Json(P)> planned = {};
  OverRanks join = OverRanks::same;
  std::function<Json(W)> written = {};
  std::function<Json(R)> stated = {};  ///< of the rest of the report, when it is printed
};

Source planned(std::function<Json(P)> of) { return {.planned = std::move(of)}; }
Source stated(std::function<Json(R)> of) { return {.stated = std::move(of)}; }
Source same(std::function<Json(W)> of) { return {.written = std::move(of)}; }
Source sum(std::function<Json(W)> of) { return {.join = OverRanks::sum, .written = std::move(of)}; }
Source most(std::function<Json(W)> of) {
  return {.join = OverRanks::most, .written = std::move(of)};
}

/// How the readable report states a figure: by a phrase in a line, where it is not 0 or always.
struct Phrase {
  std::string_view line = {};
  std::string_view text = {};
  bool always = false;
};
constexpr bool always = true;

struct Figure {
  std::string_view key;  ///< its place in the document
  Unit unit = Unit::any;
  Source source = {};
  Phrase phrase = {};
};

Json list(std::vector<std::string> const& words) {
  return Json(Json::Array(words.begin(), words.end()));
}

Json dtype_changes(R r) {
  Json changes = Json::array();
  for (DTypeChange const& change : r.dtype_changes)
    changes.push(Json()
                     .set("from", name(change.from))
                     .set("to", name(change.to))
                     .set("tensors", static_cast<std::uint64_t>(change.tensors))
                     .set("names", list(change.names)));
  return changes;
}

Json left_out(R r) {
  return Json()
      .set("tensors", r.left_out.tensors)
      .set("bytes", r.left_out.bytes)
      .set("names", list(r.left_out.names));
}

std::string source_layout(P p) {
  Json const merged = fact(p.job.plan.made_with, "adapter");
  Json const* const modules = merged.find("modules");
  return p.job.source.summary +
         (modules == nullptr
              ? ""
              : fmt::format(" · {} of {} merged", counted(*modules->integer(), "module"),
                            p.spec.source.adapter)) +
         (p.spec.source.average.empty()
              ? ""
              : fmt::format(" · mean of {}",
                            counted(1 + p.spec.source.average.size(), "checkpoint")));
}

/// Of the source, not read: both the source and the previous target have recorded the tensor.
std::uint64_t since_unread(P p) {
  std::uint64_t sum = 0;
  auto const& taken = p.job.previous.taken.tensors;
  for (std::size_t t = 0; t < taken.size(); ++t)
    if (taken[t]) sum += p.job.plan.plan.tensor_bytes[t];
  return sum;
}

Json stages(R r) {
  Json out(Json::Array{});
  auto const add = [&](std::string_view name, StageReport const& stage, double wall_seconds) {
    double const gib = static_cast<double>(stage.bytes) / (1U << 30U);
    out.push(Json()
                 .set("stage", name)
                 .set("bytes", stage.bytes)
                 .set("busy_seconds", stage.busy_seconds)
                 .set("stall_seconds", stage.stall_seconds)
                 .set("gib_per_second", wall_seconds <= 0 ? 0.0 : gib / wall_seconds));
  };
  double const streamed = r.figures.seconds("run.seconds.copy");
  double const verified = r.figures.seconds("run.seconds.verify");
  add("read", r.stages[0], streamed);
  add("rearrange", r.stages[1], streamed);
  add("write", r.stages[2], streamed);
  add("verify", {r.figures.count("run.bytes_verified"), verified, 0}, verified);
  return out;
}

Json refused(R r) {
  return Json().set("exit_code", exit_code(r.refusal->kind())).set("error", r.refusal->sentence());
}

/// All figures, in the order of the document. Bytes and counts of a run are those of all ranks.
std::vector<Figure> const& figures() {
  using enum Unit;
  // clang-format off
  static std::vector<Figure> const all = {
    {"type", text, stated([](R r) { return r.planned_only ? "plan" : "result"; })},
    {"source.path", text, stated([](R r) { return r.job.source.path; })},
    {"source.format", text, planned([](P p) { return p.job.source.format->name(); })},
    {"source.save", any},  // the folder in source.path that was taken: "iter_0000010"; null where it is the save
    {"source.layout", text, planned(source_layout)},  // "tp 2 · pp 2 · …" or "safetensors, 3 files"
    {"target.path", text, stated([](R r) { return r.job.target.path; })},
    {"target.format", text, stated([](R r) { return name(r.job.target.format); })},
    {"map", text, planned([](P p) { return p.job.plan.map_name; })},  // the family's, "" for none
    {"ranks", count, planned([](P p) { return p.job.ranks; })},
    {"parts", text, planned([](P p) { return p.job.plan.absent.parts; })},  // what becomes of parts beside the language model

    {"plan.logical_tensors", count, planned([](P p) { return p.job.plan.plan.logical_tensors; })},
    {"plan.source_files", count, planned([](P p) { return p.job.source.files.size(); })},
    {"plan.source_tensors", count, planned([](P p) { return p.job.plan.source.blobs.size(); })},
    {"plan.state_bytes", bytes},  // of optimizer state, each element once
    {"plan.states", words},       // its slots: "param", "exp_avg", …
    {"plan.replicas_not_read", count, planned([](P p) { return p.job.plan.plan.replicas_dropped; })},
    {"plan.target_files", count, planned([](P p) { return p.job.plan.files.size(); })},
    {"plan.target_tensors", count, planned([](P p) { return p.job.plan.target.blobs.size(); })},
    {"plan.left_out", any, stated(left_out)},
    {"plan.dtype_changes", any, stated(dtype_changes)},
    {"plan.trained_padding", any, stated([](R r) { return list(r.trained_padding); })},
    {"plan.regions", count, planned([](P p) { return p.job.plan.plan.joined_regions; })},
    {"plan.rounds", count},
    {"plan.payload_read_bytes", bytes, planned([](P p) { return p.job.plan.plan.source_bytes; })},  // of the model, each counted once
    {"plan.payload_written_bytes", bytes, planned([](P p) { return p.job.plan.plan.target_bytes; })},  // with replicas
    {"plan.target_bytes", bytes, planned([](P p) { return target_file_bytes(p.job.plan); }), {"disk", "{} needed", always}},
    {"plan.replaces", any, stated([](R r) { return Json(r.replaces); })},  // whether a run would remove what is at target.path
    {"plan.free_bytes", bytes, planned([](P p) { return free_bytes_at(p.spec.target.path); }), {"disk", ", {} free", always}},
    {"plan.staging_bytes_per_rank", bytes, {}, {"memory", "at most {} per rank for staging", always}},
    {"plan.planned_memory_bytes", bytes, planned([](P p) { return p.job.resident_bytes; }), {"memory", ", {} for the program and the plan", always}},
    {"plan.per_rank", any, stated([](R r) { return loads_json(*r.per_rank); })},
    {"plan.transport", text},      // "direct", "mpi" or "nccl"
    {"plan.device", text},         // "host", "cuda" or "emulated": where bytes are rearranged
    {"plan.device_reason", text},  // why there

    {"since.path", text, stated([](R r) { return r.job.target.incremental_from; })},
    {"since.usable_files", count, planned([](P p) { return p.job.previous.usable_files; })},  // of the previous target, that may be taken over
    {"since.usable_bytes", bytes, planned([](P p) { return p.job.previous.usable_bytes; })},
    {"since.unread_bytes", bytes, planned(since_unread)},
    {"since.refused", text, planned([](P p) { return p.job.previous.why_not; })},  // why nothing is taken over; "" where it is
    {"interrupted", any, stated([](R r) { return interrupted_json(*r.interrupted); })},

    {"run.bytes_read", bytes, sum([](W w) { return w.streamed.stats.bytes_read; }), {"data", "{} read", always}},
    {"run.bytes_written", bytes, sum([](W w) { return w.streamed.stats.bytes_written; }), {"data", ", {} written", always}},
    {"run.bytes_cloned", bytes, sum([](W w) { return w.streamed.stats.bytes_cloned; }), {"data", ", {} cloned from the source"}},
    {"run.bytes_exchanged", bytes, sum([](W w) { return w.streamed.stats.bytes_sent; }), {"data", ", {} sent between ranks"}},
    {"run.bytes_copied", bytes, sum([](W w) { return w.streamed.stats.bytes_copied; })},
    {"run.cells_handed_out", count, sum([](W w) { return w.streamed.cells_of_others; })},  // that another rank did than was planned (run.work_stealing)
    {"run.bytes_handed_out", bytes, sum([](W w) { return w.streamed.bytes_of_others; }), {"data", ", {} of it for slower ranks"}},
    {"run.read_calls", count, sum([](W w) { return w.streamed.stats.read_calls; })},
    {"run.write_calls", count, sum([](W w) { return w.streamed.stats.write_calls; })},
    {"run.clone_calls", count, sum([](W w) { return w.streamed.stats.clone_calls; })},
    {"run.peak_memory_bytes", bytes, most([](W) { return peak_resident_bytes(); })},  // resident
    {"run.write_mode", text, same([](W w) { return w.streamed.write_mode; })},
    {"run.io"},  // the engines that read and wrote, and what a trial of them said
    {"run.replicas_compared", count},  // of the source, with the one that was read
    {"run.digests_compared", count, same([](W w) { return w.committed.digests_compared; })},  // tensors of the source, with its manifest
    {"run.records_compared", count, same([](W w) { return w.committed.records_compared; })},  // zip records of the source, by CRC-32
    {"run.bytes_verified", bytes, same([](W w) { return w.committed.verified.bytes_read; })},  // read back from the target before it was published
    {"run.bytes_verified_early", bytes, same([](W w) { return w.committed.verified.bytes_early; })},  // of files that were begun while others were written
    {"run.bytes_shared", bytes, same([](W w) { return w.committed.verified.bytes_shared; })},  // not read: cloned from a source whose digests are recorded
    {"run.masters_compared", count, same([](W w) { return w.committed.states.masters; })},  // logical tensors whose master weights round to them
    {"run.moments_compared", count, same([](W w) { return w.committed.states.moments; })},  // second moments that are finite and not negative
    {"run.self_check", any, stated([](R r) { return self_check_json(*r.self_check); })},
    {"run.self_check.seconds", seconds, same([](W w) { return w.committed.self_check_seconds; })},
    {"run.total_digest", text, same([](W w) { return w.committed.verified.total; })},  // of the whole model (core/formats/manifest), "" where none was taken
    {"run.device_name", text, {}, {"gpu", "{}", always}},  // rank 0's, "" on the host path
    {"run.bytes_uploaded", bytes, sum([](W w) { return w.streamed.stats.bytes_uploaded; }), {"gpu", ": {} to it", always}},
    {"run.bytes_downloaded", bytes, sum([](W w) { return w.streamed.stats.bytes_downloaded; }), {"gpu", ", {} from it", always}},
    {"run.device_memory_bytes", bytes, most([](W w) { return w.streamed.stats.device_high_water_bytes; }), {"gpu", ", at most {} of its memory per rank", always}},
    {"run.seconds.headers", seconds, planned([](P p) { return p.job.header_seconds; })},
    {"run.seconds.plan", seconds, planned([](P p) { return p.job.plan_seconds; })},
    {"run.seconds.copy", seconds, same([](W w) { return w.streamed.seconds; })},
    {"run.seconds.verify", seconds, same([](W w) { return w.committed.verify_seconds; })},
    {"run.seconds.publish", seconds, same([](W w) { return w.committed.commit_seconds; })},
    {"run.seconds.total", seconds},
    {"run.stages", any, stated(stages)},
    {"run.since.bytes_kept", bytes, same([](W w) { return w.committed.verified.reused.kept_bytes; })},  // of tensors, not written: the previous target has them
    {"run.since.bytes_filled", bytes, same([](W w) { return w.committed.verified.reused.copied_bytes; })},  // of those, copied from it
    {"run.since.files_reused", count, same([](W w) { return w.committed.verified.reused.whole_files; })},  // complete ones
    {"run.since.file_bytes_reused", bytes, same([](W w) { return w.committed.verified.reused.whole_bytes; })},
    {"run.since.oldest_verified", text, same([](W w) { return w.committed.verified.oldest_verified; })},  // when the oldest of the reused files was read back
    {"run.since.tensors_changed", count, same([](W w) { return w.committed.verified.tensors_changed; })},  // against the previous target
    {"run.since.changed", words, same([](W w) { return list(w.committed.verified.changed_tensors); })},  // the first of them
    {"run.earlier_runs", count, same([](W w) { return w.earlier_runs; })},  // that were interrupted, and resumed
    {"run.bytes_reused", bytes, same([](W w) { return w.bytes_reused; })},  // payload that they had written
    {"run.read_amplification", any, stated(read_amplification)},
    {"run.write_amplification", any, stated(write_amplification)},

    {"refused", any, stated(refused)},
    {"warnings", any, stated([](R r) { return list(r.warnings); })},
    {"job", any, stated([](R r) { return print_spec(r.job); })},
  };
  // clang-format on
  return all;
}

/// Figures whose keys begin so are part of the document only where this holds.
struct Condition {
  std::string_view keys;
  bool (*holds)(R);
};

constexpr std::array<Condition, 15> conditions = {{
    {"parts", [](R r) { return !r.figures.text("parts").empty(); }},
    {"plan.state", [](R r) { return r.figures.count("plan.state_bytes") > 0; }},
    {"plan.left_out", [](R r) { return r.left_out.tensors > 0; }},
    {"plan.dtype_changes", [](R r) { return !r.dtype_changes.empty(); }},
    {"plan.trained_padding", [](R r) { return !r.trained_padding.empty(); }},
    {"plan.replaces", [](R r) { return r.planned_only; }},
    {"plan.per_rank", [](R r) { return r.per_rank.has_value(); }},
    {"since.", [](R r) { return !r.job.target.incremental_from.empty(); }},
    {"interrupted", [](R r) { return r.interrupted.has_value(); }},
    {"run.", [](R r) { return !r.planned_only; }},
    {"run.m",
     [](R r) {
       return r.figures.count("run.masters_compared") + r.figures.count("run.moments_compared") > 0;
     }},
    {"run.self_check", [](R r) { return r.self_check.has_value(); }},
    {"run.since.", [](R r) { return r.figures.count("since.usable_files") > 0; }},
    // Earlier runs left no record of how much they had read.
    {"run.read_amplification", [](R r) { return r.figures.count("run.earlier_runs") == 0; }},
    {"refused", [](R r) { return r.refusal.has_value(); }},
}};

bool is_shown(Figure const& figure, R report) {
  return std::ranges::all_of(conditions, [&](Condition const& one) {
    return !figure.key.starts_with(one.keys) || one.holds(report);
  });
}

Figure const& figure_of(std::string_view key) {
  auto const found = std::ranges::find(figures(), key, &Figure::key);
  RESHARD_EXPECT(found != figures().end());
  return *found;
}

Json unset(Unit unit) {
  using enum Unit;
  switch (unit) {
    case count:
    case bytes: return 0;
    case seconds: return 0.0;
    case text: return "";
    case words: return Json::array();
    case any: break;
  }
  return {};
}

Json value_of(Figure const& figure, R report) {
  return figure.source.stated ? figure.source.stated(report) : report.figures.value(figure.key);
}

std::string shown_value(Figure const& figure, R report) {
  if (figure.unit == Unit::text) return report.figures.text(figure.key);
  std::uint64_t const value = report.figures.count(figure.key);
  return figure.unit == Unit::bytes ? human_bytes(value) : std::to_string(value);
}

/// Sets "a.b.c" of a document, whose objects are in the order in which they were begun.
void set_at(Json& document, std::string_view path, Json value) {
  std::size_t const dot = path.find('.');
  if (dot == std::string_view::npos) {
    document.set(path, std::move(value));
    return;
  }
  std::string_view const key = path.substr(0, dot);
  if (document.find(key) == nullptr) document.set(key, Json::object());
  auto const object = std::ranges::find(
      *document.members(), key, [](auto const& member) { return std::string_view(member.first); });
  set_at(object->second, path.substr(dot + 1), std::move(value));
}

Json joined(Json value, OverRanks join, Comm const& comm) {
  if (join == OverRanks::same) return value;
  std::int64_t const mine = *value.integer();
  return join == OverRanks::sum ? comm.sum(mine) : comm.max(mine);
}

}  // namespace

void Figures::set(std::string_view key, Json value) {
  values_.insert_or_assign(std::string(figure_of(key).key), std::move(value));
}

Json Figures::value(std::string_view key) const {
  Unit const unit = figure_of(key).unit;
  auto const found = values_.find(key);
  return found == values_.end() ? unset(unit) : found->second;
}

std::uint64_t Figures::count(std::string_view key) const {
  return static_cast<std::uint64_t>(*value(key).integer());
}

double Figures::seconds(std::string_view key) const { return *value(key).real(); }

std::string Figures::text(std::string_view key) const { return *value(key).text(); }

void set_planned(Figures& all, JobSpec const& spec, PlannedJob const& job) {
  for (Figure const& figure : figures())
    if (figure.source.planned) all.set(figure.key, figure.source.planned({spec, job}));
}

void set_written(Figures& all, WrittenJob const& written, Comm const& comm) {
  for (Figure const& figure : figures())
    if (figure.source.written)
      all.set(figure.key, joined(figure.source.written(written), figure.source.join, comm));
}

std::string phrases_of(RunReport const& report, std::string_view line) {
  std::string out;
  for (Figure const& figure : figures()) {
    Phrase const& phrase = figure.phrase;
    if (phrase.line != line || (!phrase.always && report.figures.count(figure.key) == 0)) continue;
    out += fmt::format(fmt::runtime(phrase.text), shown_value(figure, report));
  }
  return out;
}

Json report_json(RunReport const& report) {
  Json document;
  for (Figure const& figure : figures())
    if (is_shown(figure, report)) set_at(document, figure.key, value_of(figure, report));
  return document;
}

}  // namespace reshard
