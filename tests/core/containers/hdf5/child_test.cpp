#include "core/containers/hdf5/child/child.hpp"

#include <chrono>
#include <csignal>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/containers/hdf5/child/call_filter.hpp"
#include "tests/core/containers/hdf5/container_files.hpp"
#include "tests/support/failing_call.hpp"

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
  EXPECT_EQ(ask_child(file, [](File const& given) { return std::to_string(given.size_bytes()); }),
            "10");
  EXPECT_EQ(ask_child(file, [](File const&) { return std::string(); }), "");
  std::string const large =
      ask_child(file, [](File const&) { return std::string(std::size_t{5} << 20U, 'x'); });
  EXPECT_EQ(large, std::string(std::size_t{5} << 20U, 'x'));
  EXPECT_EQ(said([](File const& given) -> std::string {
              fail(ErrorKind::source, "{} bytes", given.size_bytes());
            }),
            "3: 10 bytes");
}

TEST(Hdf5Child, CrashesAreErrorsOfTheSource) {
  expect_says(said([](File const&) -> std::string { std::abort(); }),
              {"3: ", "x.h5", "crashed (signal 6"});
  expect_says(said([](File const&) -> std::string {
                ::raise(SIGSEGV);
                return "";
              }),
              {"3: ", "crashed (signal 11"});
  expect_says(said([](File const&) -> std::string { ::_exit(0); }), {"3: ", "ended the process"});
}

TEST(Hdf5Child, TimeIsLimited) {
  auto const begin = std::chrono::steady_clock::now();
  // Waiting is what a slow file system looks like: no fault of the file.
  expect_says(said(
                  [](File const&) -> std::string {
                    int const word = 0;
                    while (true)
                      ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, word, nullptr, nullptr, 0);
                  },
                  {.wall_seconds = 1}),
              {"5: ", "x.h5", "not read within 1 s, of which libhdf5 used 0.", "too slow"});
  expect_says(said(
                  [](File const&) -> std::string {
                    while (true) sink = sink + 1;
                  },
                  {.cpu_seconds = 1}),
              {"3: ", "used up its CPU time", "damaged"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Hdf5Child, MemoryIsLimited) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer ends a process whose allocation fails";
#endif
  expect_says(said([](File const&) { return std::string(std::size_t{3} << 30U, 'x'); }),
              {"3: ", "more than 2.0 GiB of memory"});
}

TEST(Hdf5Child, AnswersAreNotBelieved) {
  expect_says(said([](File const&) { return std::string(1000, 'x'); }, {.answer_bytes = 999}),
              {"3: ", "too much data"});
  expect_says(said([](File const&) -> std::string { throw Error(ErrorKind::source, "\x1b[2J"); }),
              {"3: ", "an invalid answer"});
  expect_says(said([](File const&) -> std::string {
                throw Error(ErrorKind::source, std::string(100'000, 'x'));
              }),
              {"3: ", "too much data"});
  EXPECT_EQ(said([](File const&) -> std::string { fail(ErrorKind::internal, "a"); }), "3: a");
}

/// Where there is no filter the limits still hold, but an attempt is no crime.
constexpr char const* without_filter = "this build or this kernel cannot filter system calls";
std::vector<std::string> const ended = {"3: ", "x.h5",
                                        "made a system call that reading does not need", "damaged"};

TEST(Hdf5Child, NothingCanBeOpenedAnyMore) {
  auto const opens_late = [](File const& given) {
    open_no_more_files();
    bool const opened = ::open(given.path().c_str(), O_RDONLY) >= 0;
    return std::string(opened ? "opened" : "not opened");
  };
  if (can_filter_calls()) {
    expect_says(said(opens_late), ended);
  } else {
    ScratchFolder const folder("hdf5_child_open");
    EXPECT_EQ(ask_child(File::open_for_reading(folder.empty_file("x.h5", 10)), opens_late),
              "not opened");
  }
}

TEST(Hdf5Child, AForbiddenCallEndsIt) {
  if (!can_filter_calls()) GTEST_SKIP() << without_filter;
  ChildWork const attempts[] = {
      [](File const& given) { return std::to_string(::unlink(given.path().c_str())); },
      [](File const& given) {
        return std::to_string(::rename(given.path().c_str(), "/tmp/reshard_renamed"));
      },
      [](File const& given) { return std::to_string(::open(given.path().c_str(), O_RDWR)); },
      [](File const&) {
        return std::to_string(::open("/tmp/reshard_created", O_RDONLY | O_CREAT, 0600));
      },
      [](File const& given) { return std::to_string(::ftruncate(given.descriptor(), 0)); },
      [](File const&) { return std::to_string(::fork()); },
      [](File const&) { return std::to_string(::execl("/bin/true", "true", nullptr)); },
      [](File const&) { return std::to_string(::kill(::getppid(), 0)); },
      [](File const&) { return std::to_string(::socket(AF_INET, SOCK_STREAM, 0)); },
      [](File const&) {
        return std::to_string(::mmap(nullptr, 4096, PROT_READ | PROT_EXEC,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
      },
  };
  for (std::size_t i = 0; i < std::size(attempts); ++i) {
    SCOPED_TRACE(i);
    expect_says(said(attempts[i]), ended);
  }
}

TEST(Hdf5Child, OnceTheFileIsOpenNoPathMeansAnything) {
  if (!can_filter_calls()) GTEST_SKIP() << without_filter;
  ChildWork const attempts[] = {
      [](File const& given) {
        open_no_more_files();
        return std::to_string(::access(given.path().c_str(), R_OK));
      },
      [](File const& given) {
        open_no_more_files();
        char into[100];
        return std::to_string(::readlink(given.path().c_str(), into, sizeof into));
      },
      [](File const&) {
        open_no_more_files();
        rlimit const limit = {100, 100};
        return std::to_string(::setrlimit(RLIMIT_NOFILE, &limit));
      },
  };
  for (std::size_t i = 0; i < std::size(attempts); ++i) {
    SCOPED_TRACE(i);
    expect_says(said(attempts[i]), ended);
  }
}

TEST(Hdf5Child, WithoutAFilterItStillWritesNoFile) {
  ScratchFolder const folder("hdf5_child_writes");
  File const file = File::open_for_reading(folder.empty_file("x.h5", 10));
  EXPECT_EQ(ask_child(file,
                      [](File const&) {
                        rlimit sizes{}, processes{};
                        ::getrlimit(RLIMIT_FSIZE, &sizes);
                        ::getrlimit(RLIMIT_NPROC, &processes);
                        return std::to_string(sizes.rlim_max) + " " +
                               std::to_string(processes.rlim_max);
                      }),
            "0 0");
}

TEST(Hdf5Child, HasNoDescriptorOfTheParentAndPrintsNothing) {
  ScratchFolder const folder("hdf5_child_descriptors");
  File const before = File::create(folder.path() / "before");
  File const file = File::open_for_reading(folder.empty_file("x.h5", 10));
  File const after = File::create(folder.path() / "after");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ask_child(file,
                      [](File const& given) {
                        if (::write(STDERR_FILENO, "x", 1) != 1)
                          return std::string("stderr cannot be written");
                        int open = 0;
                        for (int descriptor = 3; descriptor < 1000; ++descriptor)
                          open +=
                              descriptor != given.descriptor() && ::fcntl(descriptor, F_GETFD) >= 0
                                  ? 1
                                  : 0;
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

TEST(Hdf5Child, WithoutAPipeOrAProcessTheReasonIsGiven) {
  ScratchFolder const folder("hdf5_child_refused");
  File const file = File::open_for_reading(folder.empty_file("x.h5", 10));
  auto const ask = [&] { ask_child(file, [](File const&) { return std::string(); }); };
  expect_says(test::refused_without(SYS_pipe2, EMFILE, ask), {"making a pipe failed: "});
  expect_says(test::refused_without(SYS_clone, EAGAIN, ask),
              {"no process could be started to read it: ", "Raise the process limit"});
}

}  // namespace
}  // namespace reshard::hdf5
