// Ranks under a watchdog, for tests:
//
//   watchdog_probe hang      the last rank hangs in a call of the system while the others wait for
//   it: exit code 8 watchdog_probe work      computing, reading files for long and waiting for
//   others are no stall: exit code 0 watchdog_probe alone     an error that only the last rank has
//   ends all of them: exit code 3 watchdog_probe alike     an error that every rank has, but nobody
//   agreed upon, is thrown on each: exit code 4

#include <chrono>
#include <string>
#include <thread>

#include "core/base/threads/activity.hpp"
#include "core/transport/monitor/heartbeat.hpp"

namespace {

using namespace std::chrono_literals;
constexpr double timeout_seconds = 1;

void hang(reshard::Comm const& comm) {
  reshard::Heartbeat const heartbeat(comm, timeout_seconds);
  reshard::begin_phase("publishing");
  if (comm.rank() == comm.size() - 1) {
    std::filesystem::path const path = "/data/out";
    reshard::FileStep const step("fsync", path);
    std::this_thread::sleep_for(60s);
  }
  comm.barrier();
}

void work(reshard::Comm const& comm) {
  reshard::Heartbeat const heartbeat(comm, timeout_seconds);
  if (comm.rank() == 0) {
    auto const begin = std::chrono::steady_clock::now();
    for (unsigned volatile turns = 0; std::chrono::steady_clock::now() - begin < 2s;)
      turns = turns + 1;
    for (int i = 0; i < 25; ++i) {
      std::filesystem::path const path = "/data/in";
      reshard::FileStep const step("reading", path);
      std::this_thread::sleep_for(100ms);
    }
  }
  comm.barrier();
}

int meet_error(reshard::Comm const& comm, bool alone) {
  reshard::Heartbeat const heartbeat(comm, 30);
  auto const error = reshard::capture([&] {
    if (!alone) reshard::fail(reshard::ErrorKind::target, "all of them");
    if (comm.rank() == comm.size() - 1) reshard::fail(reshard::ErrorKind::source, "only this one");
    comm.barrier();
  });
  auto const thrown = reshard::capture([&] { comm.end_with(*error); });
  return reshard::exit_code(thrown->kind());
}

}  // namespace

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  reshard::Comm const comm = reshard::Comm::world();
  if (argc != 2) return 2;
  std::string const what = argv[1];
  if (what == "hang") hang(comm);
  if (what == "work") work(comm);
  if (what == "alone" || what == "alike") return meet_error(comm, what == "alone");
  return 0;
}
