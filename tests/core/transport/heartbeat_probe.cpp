// Ranks under a heartbeat, for tests:
//
//   heartbeat_probe leave    every rank ends at another time, nobody is missed: exit code 0
//   heartbeat_probe stop     rank 1 stands still while the others wait in a collective call: exit code 8

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "core/transport/heartbeat.hpp"

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

}  // namespace

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  reshard::Comm const comm = reshard::Comm::world();
  if (argc != 2) return 2;
  if (std::string(argv[1]) == "leave")
    leave(comm);
  else
    stop(comm);
  return 0;
}
