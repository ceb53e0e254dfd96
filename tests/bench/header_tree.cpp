// Makes the target of a job with headers and no weights: every file at its full size with nothing
// in it but what surrounds the tensors, so that plans of the largest models can be measured, and
// read back, without their terabytes.
//
//   header_tree JOB.toml OUT [RANKS…]   JSON: times, sizes, and for each number of ranks the bytes
//   of the busiest rank, and the parts that are handed out. OUT "-": nothing is written

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/plan/cells/rank_parts.hpp"
#include "core/plan/cells/round_sizes.hpp"
#include "core/plan/cells/schedule.hpp"
#include "core/plan/equal/shared_pages.hpp"
#include "pipeline/job/plan_request.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/read/open_source.hpp"
#include "stages/write/target_files.hpp"
#include "tests/support/plan_regions.hpp"

namespace {

using namespace reshard;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void write_tree(JobPlan const& plan, fs::path const& out) {
  for (TargetFile const& file : plan.files) {
    TargetLayout const layout{out / file.path, file.size_bytes, file.frame};
    make_folders(layout.path.parent_path());
    create_target_file(layout).close();
    std::vector<std::uint32_t> const checksums(
        file.frame->records().size());  // nobody checks those of weights
    FileSet open({layout.path}, FileSet::Access::write);
    finish_target_file(open, 0, layout, frame_of(layout, checksums, {}));
    open.close();
  }
  for (TextFile const& text : plan.texts) {
    fs::create_directories((out / text.path).parent_path());
    write_text_file(out / text.path, text.make ? text.make() : text.text);
  }
}

/// What the busiest of so many ranks reads, writes, and does of both together, and the means of all
/// ranks.
Json busiest(Plan const& plan, int ranks) {
  std::uint64_t read = 0;
  std::uint64_t written = 0;
  std::uint64_t both = 0;
  std::uint64_t all_read = 0;
  std::uint64_t all_written = 0;
  RankCells const cells(plan, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    std::uint64_t source = 0;
    std::uint64_t target = 0;
    for (std::size_t c = cells.of(rank).begin; c < cells.of(rank).end; ++c) {
      source += plan.cells[c].source_bytes;
      target += plan.cells[c].target_bytes;
    }
    read = std::max(read, source);
    written = std::max(written, target);
    both = std::max(both, source + target);
    all_read += source;
    all_written += target;
  }
  auto const n = static_cast<std::uint64_t>(ranks);
  return Json()
      .set("ranks", std::int64_t{ranks})
      .set("read_bytes", read)
      .set("written_bytes", written)
      .set("both_bytes", both)
      .set("mean_read_bytes", all_read / n)
      .set("mean_written_bytes", all_written / n);
}

/// The parts of so many ranks at the default memory, and what is kept back of pages that several
/// write; -1: more than is allowed, and nothing is handed out.
Json handed_out(Plan const& plan, int ranks) {
  Clock::time_point const start = Clock::now();
  RankParts const parts(plan, ranks, {.least_weight = std::uint64_t{128} << 20});
  double const cut_seconds = seconds_since(start);
  PageLimits limits;
  limits.most_spans = std::clamp<std::size_t>((std::size_t{1} << 20) / parts.count(), 64, 4096);
  std::vector<std::vector<FileSpan>> written;
  std::size_t spans = 0;
  for (std::size_t part = 0; part < parts.count(); ++part) {
    written.push_back(written_pages(plan, parts.cells(part), limits));
    spans += written.back().size();
  }
  Clock::time_point const joining = Clock::now();
  auto const most = static_cast<std::uint64_t>(std::max(ranks, 8)) * (std::uint64_t{8} << 20);
  auto const pages = pages_of_lower_writers(written, most);
  std::int64_t kept = pages ? 0 : -1;
  if (pages)
    for (std::vector<FileSpan> const& list : *pages)
      for (FileSpan const& span : list) kept += static_cast<std::int64_t>(span.end - span.begin);
  return Json()
      .set("ranks", std::int64_t{ranks})
      .set("parts", parts.count())
      .set("kept_back_bytes", kept)
      .set("stretches", spans)
      .set("cut_seconds", cut_seconds)
      .set("join_seconds", seconds_since(joining));
}

void make(std::string const& job_file, std::string const& out, std::vector<int> const& ranks,
          Comm const& comm) {
  JobSpec const job = parse_job_spec(read_text_file(job_file, 1U << 20), job_file, {});
  Clock::time_point const start = Clock::now();
  Checkpoint const source = open_source(job.source.path, job.source.format, open_choice(job), comm);
  double const header_seconds = seconds_since(start);
  Clock::time_point const planning = Clock::now();
  char const* const maps = std::getenv("RESHARD_MAPS");
  PlanLimits const limits = limits_for(job.run.memory_bytes);  // those of a run without messages
  JobPlan const plan = make_job_plan(
      source,
      plan_request(job,
                   MapLibrary({maps != nullptr ? maps : RESHARD_SOURCE_DIR "/configs/models"})),
      limits);
  double const plan_seconds = seconds_since(planning);
  Json loads = Json::array();
  Json parts = Json::array();
  for (int const n : ranks) loads.push(busiest(plan.plan, n));
  for (int const n : ranks) parts.push(handed_out(plan.plan, n));
  Json result;
  result.set("header_seconds", header_seconds)
      .set("plan_seconds", plan_seconds)
      .set("cells", plan.plan.cells.size());
  result.set("regions_after_cutting", test::regions_of(plan.plan).size())
      .set("busiest_rank", std::move(loads))
      .set("handed_out", std::move(parts));
  if (out != "-") write_tree(plan, out);
  std::puts(result.dump(2).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: header_tree JOB.toml OUT [RANKS...]\n", stderr);
    return 2;
  }
  std::vector<int> ranks;
  for (int i = 3; i < argc; ++i) ranks.push_back(std::atoi(argv[i]));
  auto const error = capture([&] {
    MpiSession const session(&argc, &argv);
    make(argv[1], argv[2], ranks, Comm::world());
  });
  if (!error) return 0;
  std::fprintf(stderr, "error: %s\n", error->sentence().c_str());
  return exit_code(error->kind());
}
