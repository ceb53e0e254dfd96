// What the report of a job says, and how long it is.

#include "pipeline/run/report/run_report.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace reshard {
namespace {

/// A job with everything a report can say: adapters merged, state, a GPU, a previous target.
RunReport everything() {
  RunReport r;
  r.job.source.path = "/train/moe";
  r.job.target.path = "/next/moe";
  r.job.target.incremental_from = "/next/yesterday";
  for (auto const& [key, value] : std::vector<std::pair<std::string_view, Json>>{
           {"ranks", 2},
           {"source.format", "megatron"},
           {"source.layout", "tp 2 · pp 2, 4 shards"},
           {"map", "qwen3_moe.toml"},
           {"parts", "3 tensors beside the language model"},
           {"plan.device", "cuda"},
           {"plan.device_reason", "set by the job"},
           {"plan.transport", "nccl"},
           {"plan.states", Json(Json::Array{"exp_avg"})},
           {"plan.state_bytes", 8},
           {"plan.payload_read_bytes", 24},
           {"plan.source_files", 4},
           {"plan.target_files", 4},
           {"since.usable_files", 2},
           {"run.device_name", "H100"},
           {"run.write_mode", "direct"},
           {"run.total_digest", "00112233445566778899aabbccddeeff"},
           {"run.earlier_runs", 1},
           {"run.since.files_reused", 1},
           {"run.since.oldest_verified", "2026-01-02"},
           {"run.since.tensors_changed", 3},
           {"run.since.changed", Json(Json::Array{"a", "b"})},
           {"run.masters_compared", 5},
           {"run.moments_compared", 5},
           {"run.bytes_read", 1024},
           {"run.bytes_written", 1024},
           {"run.bytes_cloned", 2048},
           {"run.bytes_exchanged", 2048},
           {"run.bytes_copied", 2048},
           {"run.cells_handed_out", 2},
           {"run.bytes_handed_out", 512},
           {"run.bytes_verified", 4096},
           {"run.bytes_shared", 4096},
           {"run.seconds.copy", 4.0},
           {"run.seconds.total", 5.0}})
    r.figures.set(key, value);
  r.stages[0] = {1U << 30U, 2.0, 0.5};
  return r;
}

std::ptrdiff_t lines(std::string const& text) { return std::count(text.begin(), text.end(), '\n'); }

bool has(std::string const& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(RunReport, TheBriefOneFitsFifteenLinesWithAllThatAJobCanHave) {
  std::string const text = report_text(everything(), ReportDetail::brief);
  EXPECT_LE(lines(text), brief_report_lines) << text;
  for (std::string_view const part :
       {"/train/moe", "/next/moe", "4 files", "1.0 KiB read, 1.0 KiB written, 2.0 KiB cloned",
        "512 B of it for slower ranks", "2.0 KiB sent between ranks",
        "00112233445566778899aabbccddeeff, verified: 4.0 KiB", "1 earlier run\n",
        "3 tensors: a, b, …", "5.0 s: headers"})
    EXPECT_TRUE(has(text, part)) << part << "\n" << text;
}

TEST(RunReport, SaysWhatTheMapDrops) {
  RunReport r;
  EXPECT_FALSE(has(report_text(r, ReportDetail::brief), "left out"));
  EXPECT_EQ(report_json(r).find("plan")->find("left_out"), nullptr);
  r.left_out = {1, 256, {"a.inv_freq"}};
  EXPECT_TRUE(has(report_text(r, ReportDetail::brief),
                  "; 1 stored tensor (256 B) left out (drop): a.inv_freq\n"));
  r.left_out = {32, 8192, {"a", "b", "c"}};
  EXPECT_TRUE(has(report_text(r, ReportDetail::brief),
                  "; 32 stored tensors (8.0 KiB) left out (drop): a, b, …\n"));
  Json const json = *report_json(r).find("plan")->find("left_out");
  EXPECT_EQ(json.dump(), R"({"tensors": 32, "bytes": 8192, "names": ["a", "b", "c"]})");
}

TEST(RunReport, APlanSaysWhatAnInterruptedRunLeft) {
  RunReport r;
  r.planned_only = true;
  EXPECT_FALSE(has(report_text(r, ReportDetail::brief), "interrupted"));
  r.interrupted = InterruptedRun{.staging = "/next/.moe.part-0",
                                 .earlier = EarlierTarget::part,
                                 .why_not = "",
                                 .runs = 2,
                                 .bytes = 1024,
                                 .all_bytes = 4096,
                                 .sign_of_life = ""};
  EXPECT_TRUE(has(report_text(r, ReportDetail::brief),
                  "\ninterrupted 1.0 KiB of 4.0 KiB are written in /next/.moe.part-0 by 2 earlier "
                  "runs: `run` resumes this\n"));
  EXPECT_EQ(report_json(r).find("interrupted")->find("bytes_written")->dump(), "1024");
}

TEST(RunReport, AFigureIsAtTheKeyOfTheTableAndInNoOtherPlace) {
  RunReport r;
  EXPECT_EQ(r.figures.count("run.bytes_cloned"), 0U);
  r.figures.set("run.bytes_cloned", 2048);
  EXPECT_EQ(report_json(r).find("run")->find("bytes_cloned")->dump(), "2048");
  EXPECT_TRUE(has(report_text(r, ReportDetail::brief), ", 2.0 KiB cloned from the source\n"));
  EXPECT_THROW(r.figures.set("run.bytes_clone", 1), Error);
  EXPECT_THROW(r.figures.count("bytes_cloned"), Error);
}

TEST(RunReport, AShortJobHasAShortReport) {
  RunReport r;
  r.figures.set("run.total_digest", "0");
  EXPECT_LE(lines(report_text(r, ReportDetail::brief)), 8);
  r.planned_only = true;
  EXPECT_LE(lines(report_text(r, ReportDetail::brief)), 7);
}

TEST(RunReport, TheFullOneHasTheBriefOnesLinesAndTheRest) {
  RunReport const r = everything();
  std::string const full = report_text(r, ReportDetail::full);
  std::string const brief = report_text(r, ReportDetail::brief);
  for (std::size_t at = 0; at < brief.size();) {
    std::size_t const end = brief.find('\n', at) + 1;
    EXPECT_TRUE(has(full, std::string_view(brief).substr(at, end - at)))
        << brief.substr(at, end - at);
    at = end;
  }
  for (std::string_view const part :
       {"transport nccl", "write mode direct", "2.0 KiB in memory", "waiting 0.50 s",
        "source.path = \"/train/moe\"", "target.incremental_from = "})
    EXPECT_TRUE(has(full, part)) << part << "\n" << full;
}

TEST(RunReport, ThePlanSaysWhatItNeeds) {
  RunReport r = everything();
  r.planned_only = true;
  std::string const text = report_text(r, ReportDetail::brief);
  EXPECT_LE(lines(text), brief_report_lines) << text;
  for (std::string_view const part : {"\nplan ", "\nmemory ", "\ndisk ", "\nincremental "})
    EXPECT_TRUE(has(text, part)) << part << "\n" << text;
  EXPECT_FALSE(has(text, "\ndata ")) << text;
}

}  // namespace
}  // namespace reshard
