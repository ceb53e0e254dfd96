// Errors about a key of a job file name the line where it is written.

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "pipeline/job/key_places.hpp"

namespace reshard::test {
namespace {

JobSpec job_with(std::vector<std::string> const& overrides = {}) {
  return parse_job_spec(R"([source]
path = "in"
[target]
path = "out"
format = "megatron"
layout.tp = 2
layout.pp = 3
[model]
true_vocab_size = 9
)",
                        "job.toml", overrides);
}

TEST(KeyPlaces, AreThoseOfTheKeyThatASentenceBeginsWith) {
  JobSpec const job = job_with();
  EXPECT_EQ(at_its_key(job, "[target] layout.pp = 3: too many."),
            "job.toml:7:13: [target] layout.pp = 3: too many.");
  EXPECT_EQ(at_its_key(job, "[target] path: is a link."),
            "job.toml:4:8: [target] path: is a link.");
  EXPECT_EQ(at_its_key(job, "[model] true_vocab_size = 9: too few."),
            "job.toml:9:19: [model] true_vocab_size = 9: too few.");
}

TEST(KeyPlaces, OfAnOverrideAreTheOverride) {
  JobSpec const job = job_with({"target.layout.pp=5"});
  EXPECT_EQ(at_its_key(job, "[target] layout.pp = 5: too many."),
            "--set \"target.layout.pp=5\": [target] layout.pp = 5: too many.");
}

TEST(KeyPlaces, OfExpertsTensorSizeAreThoseOfTheTensorSizeThatItFollows) {
  EXPECT_EQ(at_its_key(job_with(), "[target] layout.etp = 2: too many."),
            "job.toml:6:13: [target] layout.etp = 2: too many.");
  EXPECT_EQ(at_its_key(job_with({"target.layout.etp=1"}), "[target] layout.etp = 1: no."),
            "--set \"target.layout.etp=1\": [target] layout.etp = 1: no.");
}

TEST(KeyPlaces, LeaveOtherSentencesAlone) {
  JobSpec const job = job_with();
  for (char const* sentence :
       {"[target] layout.ep = 2: not in the job.", "in/model.pt: is damaged.", "[source", "[a] ",
        "in [target] layout.pp = 3: not at the front.", ""})
    EXPECT_EQ(at_its_key(job, sentence), sentence);
}

TEST(KeyPlaces, KeepTheKindOfAnErrorAndWhoHasIt) {
  JobSpec const job = job_with();
  Error const error(ErrorKind::target, "[target] path: is a link.");
  auto const thrown = [&](Error const& one) {
    return *capture([&] { with_key_places(job, [&] { throw one; }); });
  };
  EXPECT_EQ(thrown(error).kind(), ErrorKind::target);
  EXPECT_EQ(thrown(error).sentence(), "job.toml:4:8: [target] path: is a link.");
  EXPECT_FALSE(thrown(error).is_agreed());
  EXPECT_TRUE(thrown(error.agreed()).is_agreed());
}

TEST(KeyPlaces, AreNoPartOfWhatAJobIs) {
  JobSpec const job = job_with();
  JobSpec const again = parse_job_spec(print_spec(job), "other.toml", {});
  EXPECT_NE(job.places, again.places);
  EXPECT_EQ(job, again);
}

}  // namespace
}  // namespace reshard::test
