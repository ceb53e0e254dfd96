#include "core/transport/shared_sight.hpp"

#include <gtest/gtest.h>

#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

TEST(SharedSight, EveryRankSeesWhatRankZeroSees) {
  Comm const comm = Comm::world();
  std::vector<std::string> names;
  bool there = false;
  together_seeing(comm, [&] {
    names = seen_names("names in", "/x", [&] {
      return std::vector<std::string>{fmt::format("of rank {}", comm.rank()), "", "b"};
    });
    there = seen_flag("exists", "/x", [&] { return comm.rank() == 0; });
  });
  EXPECT_EQ(names, (std::vector<std::string>{"of rank 0", "", "b"}));
  EXPECT_TRUE(there);
}

TEST(SharedSight, OneLookMayTakeSeveral) {
  Comm const comm = Comm::world();
  std::string answer;
  together_seeing(comm, [&] {
    answer = seen("sum of", "/x", [&] {
      return seen("one", "/y", [&] { return std::to_string(comm.rank()); }) + "!";
    });
  });
  EXPECT_EQ(answer, "0!");
}

TEST(SharedSight, AnErrorOfTheLookIsThrownOnEveryRankAndCanBeCaughtThere) {
  Comm const comm = Comm::world();
  int caught = 0;
  std::string after;
  together_seeing(comm, [&] {
    try {
      seen("list", "/x", []() -> std::string { fail(ErrorKind::source, "/x: cannot be listed"); });
    } catch (Error const& error) {
      caught = static_cast<int>(error.kind() == ErrorKind::source &&
                                error.sentence() == "/x: cannot be listed");
    }
    after = seen("more", "/x", [] { return std::string("yes"); });
  });
  EXPECT_EQ(caught, 1);
  EXPECT_EQ(after, "yes");
}

TEST(SharedSight, ARankThatFailsAloneEndsAllOfThem) {
  Comm const comm = Comm::world();
  int const odd_one = comm.size() - 1;
  auto const error = capture([&] {
    together_seeing(comm, [&] {
      seen("first", "/x", [] { return std::string(); });
      if (comm.rank() == odd_one) fail(ErrorKind::resources, "rank {} is out of memory", odd_one);
      for (int i = 0; i < 100; ++i)
        seen(std::to_string(i), "/x", [] { return std::string(1000, 'x'); });
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->sentence(), fmt::format("rank {} is out of memory", odd_one));
  EXPECT_TRUE(comm.size() == 1 || error->is_agreed());
  comm.barrier();
}

TEST(SharedSight, RankZeroFailingAloneIsHeardByThoseWhoAskOn) {
  Comm const comm = Comm::world();
  auto const error = capture([&] {
    together_seeing(comm, [&] {
      if (comm.rank() == 0) fail(ErrorKind::io, "rank 0 cannot");
      for (int i = 0; i < 10; ++i) seen("more", "/x", [] { return std::string(); });
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->sentence(), "rank 0 cannot");
}

/// What swallows errors must not hide that a rank went another way.
TEST(SharedSight, ARankThatAsksSomethingElseIsRefused) {
  Comm const comm = Comm::world();
  if (comm.size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  auto const error = capture([&] {
    together_seeing(comm, [&] {
      for (int i = 0; i < 3; ++i) {
        try {
          seen(comm.rank() == 1 ? "other" : "same", "/x", [] { return std::string(); });
        } catch (Error const&) {
        }
      }
    });
  });
  ASSERT_TRUE(error);
  EXPECT_NE(error->sentence().find("rank 1 checks 'other /x' where rank 0 checks 'same /x'"),
            std::string::npos)
      << error->sentence();
}

TEST(SharedSight, FilesAreReadByRankZero) {
  Comm const comm = Comm::world();
  ScratchFolder const scratch("shared_sight");
  // Each rank has a file of its own under the name that it asks for; only that of rank 0 is read.
  std::filesystem::path const link = scratch.path() / "file";
  write_text_file(link, fmt::format("text of rank {}", comm.rank()));
  std::string const path = comm.broadcast(link.string(), 0);
  std::string text;
  FileStamp stamp;
  together_seeing(comm, [&] {
    text = read_text_file(path, 100);
    stamp = File::open_for_reading(path).stamp();
  });
  EXPECT_EQ(text, "text of rank 0");
  EXPECT_EQ(stamp.bytes, 14);
  EXPECT_EQ(comm.min(static_cast<std::int64_t>(stamp.inode)),
            comm.max(static_cast<std::int64_t>(stamp.inode)));
  auto const missing =
      capture([&] { together_seeing(comm, [&] { read_text_file(path + ".not", 100); }); });
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->kind(), ErrorKind::source);
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  reshard::MpiSession const session(&argc, &argv);
  return RUN_ALL_TESTS();
}
