// Ranks under a heartbeat, for tests:
//
//   heartbeat_probe leave    every rank ends at another time, nobody is missed: exit code 0
//   heartbeat_probe stop     rank 1 stands still while the others wait in a collective call: exit
//   code 8 heartbeat_probe suspend  all ranks stand still for longer than the timeout, as under
//   `scontrol suspend`: exit code 0

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "core/transport/monitor/heartbeat.hpp"

namespace {

constexpr double timeout_seconds = 3;

void leave(reshard::Comm const& comm) {
  for (int round = 0; round < 3; ++round) {
    reshard::Heartbeat const heartbeat(comm, timeout_seconds);
    std::this_thread::sleep_for(std::chrono::milliseconds(700) * comm.rank());
    comm.barrier();
    std::this_thread::sleep_for(std::chrono::milliseconds(200) * (comm.size() - comm.rank()));
  }
}

void stop(reshard::Comm const& comm) {
  reshard::Heartbeat const heartbeat(comm, timeout_seconds);
  comm.barrier();
  if (comm.rank() == 1) std::raise(SIGSTOP);
  comm.barrier();
}

/// Stands still, as a whole, for so long.
void hesitate(double seconds) {
  std::string const continuation = fmt::format("(sleep {}; kill -CONT {}) &", seconds, ::getpid());
  if (std::system(continuation.c_str()) != 0) std::abort();
  std::raise(SIGSTOP);
}

void suspend(reshard::Comm const& comm) {
  reshard::Heartbeat const heartbeat(comm, timeout_seconds);
  comm.barrier();
  hesitate(2 * timeout_seconds);
  comm.barrier();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

}  // namespace

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  reshard::Comm const comm = reshard::Comm::world();
  if (argc != 2) return 2;
  std::string const what = argv[1];
  if (what == "leave") leave(comm);
  if (what == "stop") stop(comm);
  if (what == "suspend") suspend(comm);
  return 0;
}
