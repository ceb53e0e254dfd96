#include "pipeline/trace.hpp"

#include <map>

#include <gtest/gtest.h>

#include "core/base/file.hpp"
#include "core/base/json.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

TEST(Trace, IsAFileOfEventsWithEveryRankAndLane) {
  Comm const comm = Comm::world();
  std::optional<ScratchFolder> mine;
  if (comm.rank() == 0) mine.emplace("trace");
  std::filesystem::path const file = std::filesystem::path(comm.broadcast(mine ? mine->path().string() : std::string(), 0)) / "run.trace";
  Trace trace;
  trace.add({"read", 3, 0.5, 0.75, 1000});
  trace.add({"upload", 3, 0.75, 1.0, 500});
  trace.add({"read", 4, 0.75, 0.875, 1001});
  write_trace(comm, trace, file);
  write_trace(comm, trace, file);  // replaces the first
  comm.barrier();
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
  EXPECT_EQ(spans[comm.rank()], 3);
  EXPECT_EQ(names[comm.rank()], 1 + 2 * 2);
  comm.barrier();
}

TEST(Trace, AnUnwritablePlaceIsAnErrorOnEveryRank) {
  Comm const comm = Comm::world();
  Trace const trace;
  EXPECT_THROW(write_trace(comm, trace, "/nowhere/at/all/run.trace"), Error);
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
