#include "stages/stream/trace.hpp"

#include <csignal>
#include <map>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

TEST(Trace, IsAFileOfEventsWithEveryRankAndLane) {
  Comm const comm = Comm::world();
  std::optional<ScratchFolder> mine;
  if (comm.rank() == 0) mine.emplace("trace");
  std::filesystem::path const file =
      std::filesystem::path(comm.broadcast(mine ? mine->path().string() : std::string(), 0)) /
      "run.trace";
  Trace trace;
  trace.add({"read", 3, 0.5, 0.75, 1000});
  trace.add({"upload", 3, 0.75, 1.0, 500});
  trace.add({"read", 4, 0.75, 0.875, 1001});
  trace.add({"upload", 4, 0.9, 1.1, 600});      // overlaps: on a thread of its own
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second replaces the first
    std::optional<TraceFile> out;
    if (comm.rank() == 0) out.emplace(file);
    write_trace(comm, trace, out ? &*out : nullptr);
    comm.barrier();
  }
  Json const json = parse_json(read_text_file(file, 1 << 20), file.string());
  std::map<std::int64_t, int> spans;
  std::map<std::int64_t, int> names;
  for (Json const& event : *json.find("traceEvents")->items()) {
    auto const rank = *event.find("pid")->integer();
    if (*event.find("ph")->text() == "M") {
      ++names[rank];
      continue;
    }
    ++spans[rank];
    EXPECT_NE(event.find("dur"), nullptr);
  }
  EXPECT_EQ(spans.size(), static_cast<std::size_t>(comm.size()));
  EXPECT_EQ(spans[comm.rank()], 4);
  EXPECT_EQ(names[comm.rank()], 1 + 3 * 2);
  comm.barrier();
}

std::string refusal(std::filesystem::path const& path) {
  try {
    TraceFile const file(path);
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.sentence();
  }
  return "";
}

TEST(TraceFile, TakesNoPlaceThatHoldsSomethingElse) {
  ScratchFolder const folder("trace_file");
  EXPECT_NE(refusal("/nowhere/at/all/run.trace").find("No such file or directory"),
            std::string::npos);
  EXPECT_NE(refusal(folder.path()).find("Is a directory"), std::string::npos);
  EXPECT_NE(refusal("/dev/full").find("is not a trace"), std::string::npos);
  std::filesystem::path const weights =
      folder.file("weights", std::vector<std::byte>(100, std::byte{7}));
  EXPECT_NE(refusal(weights).find("is not a trace"), std::string::npos);
  EXPECT_EQ(bytes_of(weights), std::vector<std::byte>(100, std::byte{7}));
  std::filesystem::path const pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(refusal(pipe).find("is not a trace"), std::string::npos);
}

TEST(TraceFile, LeavesNothingBehindWhenNothingWasWritten) {
  ScratchFolder const folder("trace_file");
  std::filesystem::path const path = folder.path() / "run.trace";
  { TraceFile const file(path); }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Trace, ThatCannotBeWrittenDoesNotSpoilTheTarget) {
  ScratchFolder const scratch("trace_full");
  TraceFile file(scratch.path() / "run.trace");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit const none{0, before.rlim_max};
  auto const usual = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  auto const error = capture([&] { file.write("text"); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, usual);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_NE(error->sentence().find("the trace cannot be written: File too large. The target is"),
            std::string::npos)
      << error->sentence();
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
