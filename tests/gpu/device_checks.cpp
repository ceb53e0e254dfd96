// Streams, events, pinned memory, refusals, and what comes after an error of the device.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "core/base/error.hpp"
#include "core/device/copy_program.hpp"
#include "core/device/strided_copy.hpp"
#include "tests/gpu/gpu_checks.hpp"
#include "tests/gpu/random_words.hpp"

namespace reshard::test {
namespace {

/// The Error that `work` ends with; nothing when it ends well.
std::optional<Error> error_of(std::function<void()> const& work) {
  try {
    work();
    return std::nullopt;
  } catch (Error const& error) {
    return error;
  }
}

std::string streams_and_events(Testbed& testbed, CheckOptions const& options) {
  std::uint64_t const bytes = options.small || testbed.emulated() ? 1U << 20U : 256U << 20U;
  auto const a = testbed.device().allocate(bytes);
  auto const b = testbed.device().allocate(bytes);
  DeviceStream& first = testbed.stream(0);
  DeviceStream& second = testbed.stream(1);
  constexpr int rounds = 20;
  for (int r = 0; r < rounds; ++r) {
    fill_random(first, a->data(), bytes, 100 + static_cast<std::uint64_t>(r));
    auto const filled = first.record();
    second.wait(*filled);
    auto const begin = second.record();
    second.copy(b->data(), a->data(), bytes);
    auto const copied = second.record();
    first.wait(*copied);
    first.fill_zero(a->data(), bytes);
    finish(first);
    expect(copied->reached() && filled->reached() && begin->reached(),
           "an event before a reached one is not reached");
    expect(copied->seconds_since(*begin) >= 0 && copied->seconds_since(*filled) >= 0,
           "events run backwards");
    for (std::uint64_t const at : {std::uint64_t{0}, bytes / 2, bytes - 4096}) {
      std::vector<std::byte> const found = testbed.download(b->data() + at, 4096);
      std::vector<std::byte> const zeros = testbed.download(a->data() + at, 4096);
      for (std::uint64_t i = 0; i < found.size(); ++i) {
        expect(found[i] == random_byte(100 + static_cast<std::uint64_t>(r), at + i),
               "round {}: the copy did not wait for the fill", r);
        expect(zeros[i] == std::byte{0}, "round {}: fill_zero() left byte {}", r, at + i);
      }
    }
  }
  return fmt::format("{} rounds over two streams", rounds);
}

/// Rounds through a ring of slots: upload, pack, download on three streams, as the program does it.
class RingOfRounds {
 public:
  RingOfRounds(Testbed& testbed, std::uint64_t columns)
      : testbed_(testbed),
        columns_(columns),
        bytes_(rows * columns * run_bytes),
        in_(testbed.device(), slots * bytes_),
        out_(testbed.device(), slots * bytes_) {
    dims_ = {{columns_, static_cast<std::int64_t>(run_bytes),
              static_cast<std::int64_t>(rows * run_bytes)},
             {rows, static_cast<std::int64_t>(columns_ * run_bytes),
              static_cast<std::int64_t>(run_bytes)}};
    std::vector<CopyRequest> const copies{{0, 0, run_bytes, dims_}};
    Program program;
    add_copies(program, copies);
    launches_ = program.launches;
    program_ = testbed.device().allocate(program.bytes.size());
    testbed.upload(program_->data(), program.bytes);
    for (std::size_t s = 0; s < slots; ++s) {
      from_.push_back(testbed.device().allocate(bytes_));
      to_.push_back(testbed.device().allocate(bytes_));
    }
  }

  void run(std::uint64_t rounds) {
    for (std::uint64_t r = 0; r < rounds; ++r) {
      if (under_way_.size() == slots) check_oldest();
      begin(r);
    }
    while (!under_way_.empty()) check_oldest();
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t slots = 3;
  static constexpr std::uint64_t rows = 6;
  static constexpr std::uint64_t run_bytes = 48;

  struct Round {
    std::uint64_t number = 0;
    std::unique_ptr<DeviceEvent> done;
  };

  void begin(std::uint64_t number) {
    std::size_t const slot = number % slots;
    std::byte* const in = in_.data() + slot * bytes_;
    std::byte* const out = out_.data() + slot * bytes_;
    for (std::uint64_t i = 0; i < bytes_ / 8; ++i) {
      std::uint64_t const word = random_word(number, i);
      std::memcpy(in + 8 * i, &word, 8);
    }
    std::memset(out, 0xdb, bytes_);
    testbed_.stream(0).upload(from_[slot]->data(), in, bytes_);
    auto const uploaded = testbed_.stream(0).record();
    testbed_.stream(1).wait(*uploaded);
    for (Launch const& launch : launches_)
      testbed_.stream(1).launch(launch, {program_->data(), from_[slot]->data(), to_[slot]->data()});
    auto const packed = testbed_.stream(1).record();
    testbed_.stream(2).wait(*packed);
    testbed_.stream(2).download(out, to_[slot]->data(), bytes_);
    under_way_.push_back({number, testbed_.stream(2).record()});
  }

  void check_oldest() {
    Round const round = std::move(under_way_.front());
    under_way_.pop_front();
    while (!round.done->reached()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    std::size_t const slot = round.number % slots;
    std::vector<std::byte> expected(bytes_);
    copy_strided(in_.data() + slot * bytes_, expected.data(), run_bytes, dims_);
    expect(std::memcmp(expected.data(), out_.data() + slot * bytes_, bytes_) == 0,
           "round {} has other bytes than on the host", round.number);
  }

  Testbed& testbed_;
  std::uint64_t columns_;
  std::uint64_t bytes_;
  std::vector<ByteDim> dims_;
  std::vector<Launch> launches_;
  std::unique_ptr<DeviceMemory> program_;
  PinnedBlock in_;
  PinnedBlock out_;
  std::vector<std::unique_ptr<DeviceMemory>> from_;
  std::vector<std::unique_ptr<DeviceMemory>> to_;
  std::deque<Round> under_way_;
};

std::string pinned_rounds(Testbed& testbed, CheckOptions const& options) {
  bool const little = options.small || testbed.emulated();
  RingOfRounds ring(testbed, little ? 1024 : 32768);  // a slot is a multiple of the page size
  std::uint64_t const rounds = little ? 5 : 40;
  ring.run(rounds);
  return fmt::format("{} rounds of {} bytes over 3 slots and 3 streams", rounds, ring.bytes());
}

std::string refusals(Testbed& testbed, CheckOptions const& options) {
  if (testbed.emulated()) return "left out: needs a GPU";
  std::optional<Error> const memory =
      error_of([&] { testbed.device().allocate(std::uint64_t{1} << 50U); });
  expect(memory.has_value() && memory->kind() == ErrorKind::resources,
         "1 PiB of GPU memory was not refused as it should be: {}",
         memory ? memory->sentence() : "no error");
  // An address range that nothing is mapped to cannot be pinned.
  void* const hole = ::mmap(nullptr, 1U << 20U, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(hole != MAP_FAILED, "mmap failed");
  ::munmap(hole, 1U << 20U);
  std::optional<Error> const pin = options.small ? std::nullopt : error_of([&] {
    testbed.device().pin(static_cast<std::byte*>(hole), 1U << 20U);
  });
  expect(options.small || (pin.has_value() && pin->kind() == ErrorKind::resources),
         "memory that is not there was pinned: {}", pin ? pin->sentence() : "no error");
  std::optional<Error> const number = error_of([] { open_cuda_device(1000); });
  expect(number.has_value(), "GPU number 1000 could be opened");
  // None of this may last.
  auto const some = testbed.device().allocate(1U << 20U);
  fill_random(testbed.stream(), some->data(), 1U << 20U, 3);
  std::vector<std::byte> const found = testbed.download(some->data(), 1U << 20U);
  for (std::uint64_t i = 0; i < found.size(); ++i)
    expect(found[i] == random_byte(3, i), "byte {} is wrong after refusals", i);
  return "memory, pinning and device number refused; the device works on";
}

std::string memory_comes_back(Testbed& testbed, CheckOptions const& options) {
  if (testbed.emulated() || options.small) return "left out: needs a GPU of its own";
  constexpr std::uint64_t bytes = std::uint64_t{2} << 30U;
  std::uint64_t const before = testbed.device().free_bytes();
  for (int i = 0; i < 200; ++i) {
    auto const memory = testbed.device().allocate(bytes);
    expect(reinterpret_cast<std::uintptr_t>(memory->data()) % 256 == 0,
           "memory does not begin on a multiple of 256");
    expect(i > 0 || before - testbed.device().free_bytes() >= bytes,
           "free_bytes() does not count an allocation");
  }
  std::uint64_t const after = testbed.device().free_bytes();
  expect(after + (std::uint64_t{64} << 20U) >= before, "200 allocations left {} bytes behind",
         before - after);
  return "200 allocations of 2 GiB";
}

/// Runs this program again with one argument and returns its exit code; -1 when it had to be
/// killed.
int run_again(char const* argument) {
  pid_t const child = ::fork();
  expect(child >= 0, "fork failed");
  if (child == 0) {
    ::execl("/proc/self/exe", "gpu_checks", argument, static_cast<char*>(nullptr));
    ::_exit(127);
  }
  constexpr int most_looks = 600;
  for (int look = 0; look < most_looks; ++look) {
    int status = 0;
    pid_t const ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    expect(ended >= 0 || errno == EINTR, "waitpid failed");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return -1;
}

std::string after_device_error(Testbed& testbed, CheckOptions const& options) {
  if (testbed.emulated() || options.small) return "left out: needs a GPU of its own";
  int const code = run_again(after_device_error_argument);
  expect(code == 0, "a process whose device fails ended with {}{}", code,
         code == -1 ? " (it hung)" : "");
  return "a kernel that reads address 16 ends in Errors, without a hang or a crash";
}

}  // namespace

int check_after_device_error() {
  Testbed testbed(device_or_skip(false));
  auto const memory = testbed.device().allocate(1U << 20U);
  std::vector<CopyRequest> const copies{{0, 0, 1U << 16U, {}}};
  Program program;
  add_copies(program, copies);
  std::byte* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{16});
  std::optional<Error> const first =
      error_of([&] { testbed.carry_out(program, nowhere, memory->data()); });
  expect(first.has_value(), "a kernel read address 16 without an error");
  std::printf("the error: %s\n", first->sentence().c_str());
  // From here on every call may only throw Errors.
  int errors = 0;
  for (std::function<void()> const& work :
       {std::function<void()>([&] { testbed.device().allocate(1U << 20U); }),
        {[&] { finish(testbed.stream(1)); }},
        {[&] { testbed.stream().fill_zero(memory->data(), 16); }},
        {[&] { testbed.device().free_bytes(); }}})
    errors += error_of(work).has_value() ? 1 : 0;
  expect(errors == 4, "after an error of the device only {} of 4 calls said so", errors);
  return 0;
}

std::vector<Check> device_checks() {
  return {{"device: streams and events", streams_and_events},
          {"device: pinned rounds", pinned_rounds},
          {"device: refusals", refusals},
          {"device: memory comes back", memory_comes_back},
          {"device: after an error", after_device_error}};
}

}  // namespace reshard::test
