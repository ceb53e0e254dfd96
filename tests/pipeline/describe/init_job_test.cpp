#include "pipeline/describe/init_job.hpp"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "core/base/files/file.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::optional<ErrorKind> refusal(fs::path const& path, std::string const& text) {
  auto const error = capture([&] { write_new_job(path, text); });
  return error ? std::optional(error->kind()) : std::nullopt;
}

TEST(NewJob, IsWrittenOnce) {
  ScratchFolder const folder("init_job");
  fs::path const job = folder.path() / "job.toml";
  EXPECT_EQ(refusal(job, "first"), std::nullopt);
  EXPECT_EQ(refusal(job, "second"), ErrorKind::target);
  EXPECT_EQ(read_text_file(job, 100), "first");
}

TEST(NewJob, NeedsAPlace) {
  ScratchFolder const folder("init_job");
  EXPECT_EQ(refusal(folder.path() / "nowhere" / "job.toml", "text"), ErrorKind::usage);
  EXPECT_EQ(refusal("/proc/job.toml", "text"), ErrorKind::usage);
}

TEST(NewJob, IsNotLeftWhenTheDiskIsFull) {
  ScratchFolder const folder("init_job");
  fs::path const job = folder.path() / "job.toml";
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 100;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  auto const refused = refusal(job, std::string(1000, '#'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(refused, ErrorKind::resources);
  EXPECT_FALSE(fs::exists(job));
  EXPECT_EQ(refusal(job, "text"), std::nullopt);
}

}  // namespace
}  // namespace reshard
