#include "core/formats/hdf5/child.hpp"

#include <chrono>
#include <csignal>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/core/formats/hdf5/container_files.hpp"

namespace reshard::hdf5 {
namespace {

/// What a child that does `work` ends in, on an empty file.
std::string said(ChildWork work, ChildLimits const& limits = {}) {
  static ScratchFolder const folder("hdf5_child");
  File const file = File::open_for_reading(folder.empty_file("x.h5", 10));
  return refusal([&] { static_cast<void>(ask_child(file, work, limits)); });
}

int volatile sink = 0;

TEST(Hdf5Child, AnswersAndRefusalsArriveWhole) {
  ScratchFolder const folder("hdf5_child_answer");
  File const file = File::open_for_reading(folder.empty_file("x.h5", 10));
  EXPECT_EQ(ask_child(file, [](File const& given) { return std::to_string(given.size_bytes()); }), "10");
  EXPECT_EQ(ask_child(file, [](File const&) { return std::string(); }), "");
  std::string const large = ask_child(file, [](File const&) { return std::string(std::size_t{5} << 20U, 'x'); });
  EXPECT_EQ(large, std::string(std::size_t{5} << 20U, 'x'));
  EXPECT_EQ(said([](File const& given) -> std::string { fail(ErrorKind::source, "{} bytes", given.size_bytes()); }), "3: 10 bytes");
}

TEST(Hdf5Child, CrashesAreErrorsOfTheSource) {
  expect_says(said([](File const&) -> std::string { std::abort(); }), {"3: ", "x.h5", "crashed (signal 6"});
  expect_says(said([](File const&) -> std::string {
                ::raise(SIGSEGV);
                return "";
              }),
              {"3: ", "crashed (signal 11"});
  expect_says(said([](File const&) -> std::string { ::_exit(0); }), {"3: ", "ended the process"});
}

TEST(Hdf5Child, TimeIsLimited) {
  auto const begin = std::chrono::steady_clock::now();
  expect_says(said(
                  [](File const&) -> std::string {
                    while (true) ::pause();
                  },
                  {.wall_seconds = 1}),
              {"3: ", "took longer than 1 s"});
  expect_says(said(
                  [](File const&) -> std::string {
                    while (true) sink = sink + 1;
                  },
                  {.cpu_seconds = 1}),
              {"3: ", "crashed (signal 9"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Hdf5Child, MemoryIsLimited) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer ends a process whose allocation fails";
#endif
  expect_says(said([](File const&) { return std::string(std::size_t{3} << 30U, 'x'); }), {"3: ", "more than 2.0 GiB of memory"});
}

TEST(Hdf5Child, AnswersAreNotBelieved) {
  expect_says(said([](File const&) { return std::string(1000, 'x'); }, {.answer_bytes = 999}), {"3: ", "too long an answer"});
  expect_says(said([](File const&) -> std::string { throw Error(ErrorKind::source, "\x1b[2J"); }), {"3: ", "without sense"});
  expect_says(said([](File const&) -> std::string { throw Error(ErrorKind::source, std::string(100'000, 'x')); }), {"3: ", "too long"});
  EXPECT_EQ(said([](File const&) -> std::string { fail(ErrorKind::internal, "a"); }), "3: a");
}

TEST(Hdf5Child, NothingCanBeOpenedAnyMore) {
  ScratchFolder const folder("hdf5_child_open");
  File const file = File::open_for_reading(folder.empty_file("x.h5", 10));
  EXPECT_EQ(ask_child(file,
                      [](File const& given) {
                        open_no_more_files();
                        bool const opened = ::open(given.path().c_str(), O_RDONLY) >= 0;
                        return std::string(opened ? "opened" : "not opened");
                      }),
            "not opened");
}

TEST(Hdf5Child, HasNoDescriptorOfTheParentAndPrintsNothing) {
  ScratchFolder const folder("hdf5_child_descriptors");
  File const before = File::create(folder.path() / "before");
  File const file = File::open_for_reading(folder.empty_file("x.h5", 10));
  File const after = File::create(folder.path() / "after");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ask_child(file,
                      [](File const& given) {
                        if (::write(STDERR_FILENO, "x", 1) != 1) return std::string("stderr cannot be written");
                        int open = 0;
                        for (int descriptor = 3; descriptor < 1000; ++descriptor)
                          open += descriptor != given.descriptor() && ::fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0;
                        return std::to_string(open);
                      }),
            "1");  // the pipe
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Hdf5Child, LeavesNoDescriptorBehind) {
  int const before = ::dup(0);
  ::close(before);
  said([](File const&) -> std::string { std::abort(); });
  said([](File const&) { return std::string(); });
  int const after = ::dup(0);
  ::close(after);
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace reshard::hdf5
