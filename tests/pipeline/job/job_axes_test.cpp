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

std::vector<std::string> further_axes() { return {"tp", "pp", "vpp", "ep", "etp", "zy", "zz"}; }

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
  JobSpec const job = parse(with(small_dist, "[target.layout]\nzy = 2\n"), {"target.layout.zz=3"});
  EXPECT_EQ(job.target.layout.size("zy"), 2);
  EXPECT_EQ(job.target.layout.size("zz"), 3);
  EXPECT_EQ(
      parse(with(small_dist, "layout.zy = 2\n"), {"target.layout.zy=4"}).target.layout.size("zy"),
      4);
  EXPECT_TRUE(says(print_spec(job), "layout.pipeline = \"\"\nlayout.zy = 2\nlayout.zz = 3\n"));
  EXPECT_EQ(parse(print_spec(job)), job);
  std::vector<std::string> const changed = changed_keys(job);
  EXPECT_EQ(std::ranges::count(changed, "target.layout.zy = 2"), 1);
}

TEST(JobAxes, AFurtherAxisOfSizeOneIsNotNamed) {
  JobSpec const usual = parse(small_dist);
  EXPECT_EQ(parse(with(small_dist, "layout.zy = 1\n")), usual);
  EXPECT_EQ(parse(with(small_dist, "layout.zy = 2\n"), {"target.layout.zy=1"}), usual);
  EXPECT_EQ(parse(with(small_dist, "layout.tp = 2\n"), {"target.layout.tp=1"}), usual);
  EXPECT_EQ(print_spec(usual).find("zy"), std::string::npos);
}

TEST(JobAxes, RefusesAxesThatNoMapKnows) {
  std::string const text = with(small_dist, "[target.layout]\nzx = 2\n");
  EXPECT_TRUE(says(refusal(text), "job.toml:7:1: [target.layout] unknown key \"zx\""));
  EXPECT_THROW(parse_job_spec(with(small_dist, "layout.zy = 2\n"), "job.toml", {}), Error)
      << "without a map there are the usual axes alone";
  EXPECT_TRUE(says(refusal(text), "[target.layout] unknown key \"zx\": did you mean"));
  EXPECT_TRUE(says(refusal(text), "zy, zz")) << "what the map knows is listed all the same";
  std::string const far = refusal(with(small_dist, "layout.sequence = 2\n"));
  EXPECT_TRUE(says(far, "known here: tp, pp, vpp, ep, etp, "));
  EXPECT_TRUE(says(far, "zy, zz")) << "what the map knows";
  EXPECT_TRUE(says(refusal(small_dist, {"target.layout.zx=2"}), "unknown key"));
  EXPECT_TRUE(says(refusal(with(small_dist, "zy = 2\n")), "unknown key \"zy\""));
}

TEST(JobAxes, ChecksTheSizesOfFurtherAxes) {
  EXPECT_TRUE(says(refusal(with(small_dist, "layout.zy = 0\n")),
                   "job.toml:6:13: [target] layout.zy = 0: expected a number from 1 to 32768"));
  EXPECT_TRUE(says(refusal(with(small_dist, "layout.zy = \"2\"\n")), "expected an integer"));
}

TEST(JobAxes, RefusesFurtherAxesWhereFilesHaveNoPlaceForThem) {
  EXPECT_TRUE(says(
      refusal(with(small_megatron, "layout.zy = 2\n")),
      "the files of target.format = \"megatron\" have no place for this axis. Remove it, or set target.format = \"torch_dist\" or "
      "\"fsdp_dtensor\""));
  EXPECT_TRUE(
      says(refusal(with(small_huggingface, "layout.zy = 2\n")), "have no place for this axis"));
  EXPECT_TRUE(says(refusal(with(small_dist, "layout.zy = 2\n[model]\nmap = \"none\"\n")),
                   "in the layout of the source"));
}

}  // namespace
}  // namespace reshard
