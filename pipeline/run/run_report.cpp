#include "pipeline/run/run_report.hpp"

#include <utility>

#include <fmt/ranges.h>

#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace reshard {
namespace {

/// Bytes that were moved for each byte that had to be; 1 is the least.
double amplification(std::uint64_t moved, std::uint64_t payload) {
  return payload == 0 ? 0 : static_cast<double>(moved) / static_cast<double>(payload);
}

Json figures(RunReport const& r) {
  Json plan;
  plan.set("logical_tensors", r.logical_tensors)
      .set("source_files", r.source_files)
      .set("source_tensors", r.source_tensors);
  if (r.state_bytes > 0)
    plan.set("state_bytes", r.state_bytes)
        .set("states", Json(Json::Array(r.states.begin(), r.states.end())));
  plan.set("replicas_not_read", r.replicas_not_read)
      .set("target_files", r.target_files)
      .set("target_tensors", r.target_tensors);
  if (r.left_out.tensors > 0)
    plan.set(
        "left_out",
        Json()
            .set("tensors", r.left_out.tensors)
            .set("bytes", r.left_out.bytes)
            .set("names", Json(Json::Array(r.left_out.names.begin(), r.left_out.names.end()))));
  if (!r.trained_padding.empty())
    plan.set("trained_padding",
             Json(Json::Array(r.trained_padding.begin(), r.trained_padding.end())));
  plan.set("regions", r.regions)
      .set("rounds", r.rounds)
      .set("payload_read_bytes", r.payload_read)
      .set("payload_written_bytes", r.payload_written);
  plan.set("target_bytes", r.target_bytes)
      .set("free_bytes", r.free_bytes)
      .set("staging_bytes_per_rank", r.staging_bytes)
      .set("planned_memory_bytes", r.planned_memory_bytes);
  if (r.per_rank) plan.set("per_rank", loads_json(*r.per_rank));
  plan.set("transport", r.transport).set("device", r.device).set("device_reason", r.path_reason);
  return plan;
}

Json stage(std::string_view name, StageReport const& stage, double wall_seconds) {
  Json out;
  out.set("stage", name)
      .set("bytes", stage.bytes)
      .set("busy_seconds", stage.busy_seconds)
      .set("stall_seconds", stage.stall_seconds);
  out.set("gib_per_second",
          wall_seconds <= 0 ? 0.0 : static_cast<double>(stage.bytes) / (1U << 30U) / wall_seconds);
  return out;
}

Json stages(RunReport const& r) {
  Json out(Json::Array{});
  out.push(stage("read", r.read, r.stream_seconds))
      .push(stage("exchange", r.exchange, r.stream_seconds));
  out.push(stage("write", r.write, r.stream_seconds))
      .push(stage("verify", {r.bytes_verified, r.verify_seconds, 0}, r.verify_seconds));
  return out;
}

Json measured(RunReport const& r) {
  Json did;
  did.set("bytes_read", r.bytes_read)
      .set("bytes_written", r.bytes_written)
      .set("bytes_cloned", r.bytes_cloned)
      .set("bytes_exchanged", r.bytes_exchanged)
      .set("bytes_copied", r.bytes_copied)
      .set("cells_handed_out", r.cells_handed_out)
      .set("bytes_handed_out", r.bytes_handed_out);
  did.set("read_calls", r.read_calls)
      .set("write_calls", r.write_calls)
      .set("clone_calls", r.clone_calls)
      .set("peak_memory_bytes", r.peak_memory_bytes)
      .set("write_mode", r.write_mode)
      .set("io", r.io);
  did.set("replicas_compared", r.replicas_compared)
      .set("digests_compared", r.digests_compared)
      .set("records_compared", r.records_compared)
      .set("bytes_verified", r.bytes_verified)
      .set("bytes_verified_early", r.bytes_verified_early)
      .set("bytes_shared", r.bytes_shared);
  if (r.masters_compared + r.moments_compared > 0)
    did.set("masters_compared", r.masters_compared).set("moments_compared", r.moments_compared);
  if (r.self_check)
    did.set("self_check", self_check_json(*r.self_check).set("seconds", r.self_check_seconds));
  did.set("total_digest", r.total_digest);
  did.set("device_name", r.device_name)
      .set("bytes_uploaded", r.bytes_uploaded)
      .set("bytes_downloaded", r.bytes_downloaded);
  did.set("device_memory_bytes", r.device_memory_bytes);
  Json seconds;
  seconds.set("headers", r.header_seconds)
      .set("plan", r.plan_seconds)
      .set("stream", r.stream_seconds)
      .set("verify", r.verify_seconds);
  seconds.set("commit", r.commit_seconds);
  seconds.set("total", r.total_seconds);
  did.set("seconds", std::move(seconds)).set("stages", stages(r));
  if (r.since_files > 0)
    did.set(
        "since",
        Json()
            .set("bytes_kept", r.bytes_kept)
            .set("bytes_filled", r.bytes_filled)
            .set("files_reused", r.files_reused)
            .set("file_bytes_reused", r.file_bytes_reused)
            .set("oldest_verified", r.reused_verified)
            .set("tensors_changed", r.tensors_changed)
            .set("changed", Json(Json::Array(r.changed_tensors.begin(), r.changed_tensors.end()))));
  did.set("earlier_runs", r.earlier_runs).set("bytes_reused", r.bytes_reused);
  if (r.earlier_runs == 0)
    did.set("read_amplification",
            read_amplification(r));  // earlier runs did not leave word of theirs
  did.set("write_amplification", write_amplification(r));
  return did;
}

}  // namespace

double read_amplification(RunReport const& r) {
  return amplification(r.bytes_read, r.payload_read);
}

double write_amplification(RunReport const& r) {
  return amplification(r.bytes_written + r.bytes_cloned + r.bytes_kept + r.bytes_reused,
                       r.payload_written);
}

Json report_json(RunReport const& r) {
  Json out;
  out.set("type", r.planned_only ? "plan" : "result")
      .set("source", Json()
                         .set("path", r.job.source.path)
                         .set("format", r.source_format)
                         .set("save", r.source_save.empty() ? Json() : Json(r.source_save))
                         .set("layout", r.source_layout));
  out.set("target", Json().set("path", r.job.target.path).set("format", name(r.job.target.format)))
      .set("map", r.map)
      .set("ranks", r.ranks);
  if (!r.parts.empty()) out.set("parts", r.parts);
  out.set("plan", figures(r));
  if (!r.job.target.since.empty())
    out.set("since", Json()
                         .set("path", r.job.target.since)
                         .set("usable_files", r.since_files)
                         .set("usable_bytes", r.since_bytes)
                         .set("unread_bytes", r.since_unread_bytes)
                         .set("refused", r.since_refused));
  if (r.interrupted) out.set("interrupted", interrupted_json(*r.interrupted));
  if (!r.planned_only) out.set("run", measured(r));
  if (r.refusal)
    out.set(
        "refused",
        Json().set("exit_code", exit_code(r.refusal->kind())).set("error", r.refusal->sentence()));
  Json::Array warnings;
  for (std::string const& warning : r.warnings) warnings.emplace_back(warning);
  out.set("warnings", Json(std::move(warnings))).set("job", print_spec(r.job));
  return out;
}

}  // namespace reshard
