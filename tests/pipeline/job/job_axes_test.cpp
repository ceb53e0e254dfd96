#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "pipeline/job/job_spec.hpp"

// The parallel axes of [target.layout]: the usual ones, and those that the model map knows.

namespace reshard {
namespace {

constexpr std::string_view small_megatron = R"([source]
path = "in"
[target]
path = "out"
format = "megatron"
)";

constexpr std::string_view small_huggingface = R"([source]
path = "in"
[target]
path = "out"
format = "huggingface"
)";

constexpr std::string_view small_dist = R"([source]
path = "in"
[target]
path = "out"
format = "torch_dist"
)";

std::vector<std::string> further_axes() { return {"tp", "pp", "vpp", "ep", "etp", "cp", "dp"}; }

JobSpec parse(std::string_view text, std::vector<std::string> const& overrides = {}) {
  return parse_job_spec(text, "job.toml", overrides, JobUse::run, further_axes);
}

std::string refusal(std::string_view text, std::vector<std::string> const& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.sentence();
  }
  return "";
}

std::string with(std::string_view text, std::string_view more) {
  return std::string(text) + std::string(more);
}

testing::AssertionResult says(std::string const& sentence, std::string_view part) {
  if (sentence.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in:\n" << sentence;
}

TEST(JobAxes, TakesTheAxesThatTheMapKnows) {
  JobSpec const job = parse(with(small_dist, "[target.layout]\ncp = 2\n"), {"target.layout.dp=3"});
  EXPECT_EQ(job.target.layout.size("cp"), 2);
  EXPECT_EQ(job.target.layout.size("dp"), 3);
  EXPECT_EQ(
      parse(with(small_dist, "layout.cp = 2\n"), {"target.layout.cp=4"}).target.layout.size("cp"),
      4);
  EXPECT_TRUE(says(print_spec(job), "layout.pipeline = \"\"\nlayout.cp = 2\nlayout.dp = 3\n"));
  EXPECT_EQ(parse(print_spec(job)), job);
  std::vector<std::string> const changed = changed_keys(job);
  EXPECT_EQ(std::ranges::count(changed, "target.layout.cp = 2"), 1);
}

TEST(JobAxes, RefusesAxesThatNoMapKnows) {
  std::string const text = with(small_dist, "[target.layout]\ncq = 2\n");
  EXPECT_TRUE(says(refusal(text), "job.toml:7:1: [target.layout] unknown key \"cq\""));
  EXPECT_THROW(parse_job_spec(with(small_dist, "layout.cp = 2\n"), "job.toml", {}), Error)
      << "without a map there are the usual axes alone";
  EXPECT_TRUE(says(refusal(text), "[target.layout] unknown key \"cq\": did you mean"));
  EXPECT_TRUE(says(refusal(text), "cp, dp")) << "what the map knows is listed all the same";
  std::string const far = refusal(with(small_dist, "layout.sequence = 2\n"));
  EXPECT_TRUE(says(far, "known here: tp, pp, vpp, ep, etp, first_stage_layers"));
  EXPECT_TRUE(says(far, "cp, dp")) << "what the map knows";
  EXPECT_TRUE(says(refusal(small_dist, {"target.layout.cq=2"}), "unknown key"));
  EXPECT_TRUE(says(refusal(with(small_dist, "cp = 2\n")), "unknown key \"cp\""));
}

TEST(JobAxes, ChecksTheSizesOfFurtherAxes) {
  EXPECT_TRUE(says(refusal(with(small_dist, "layout.cp = 0\n")),
                   "job.toml:6:13: [target] layout.cp = 0: expected a number from 1 to 32768"));
  EXPECT_TRUE(says(refusal(with(small_dist, "layout.cp = \"2\"\n")), "expected an integer"));
}

TEST(JobAxes, RefusesFurtherAxesWhereFilesHaveNoPlaceForThem) {
  EXPECT_TRUE(says(
      refusal(with(small_megatron, "layout.cp = 2\n")),
      "the files of target.format = \"megatron\" have no place for this axis. Remove it, or set target.format = \"torch_dist\" or "
      "\"fsdp_dtensor\""));
  EXPECT_TRUE(
      says(refusal(with(small_huggingface, "layout.cp = 2\n")), "have no place for this axis"));
  EXPECT_TRUE(says(refusal(with(small_dist, "layout.cp = 2\n[model]\nmap = \"none\"\n")),
                   "in the layout of the source"));
}

}  // namespace
}  // namespace reshard
