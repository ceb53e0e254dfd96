// Two ranks that exchange, one of which fails: the test looks at the exit code of the whole job.
//   stream_abort_probe source|stall|stop host|device_with_mpi|device_with_nccl FOLDER

#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "tests/support/scratch_folder.hpp"
#include "tests/support/stream_into.hpp"
#include "tests/support/stream_paths.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t bytes = 1 << 20;

RoundWork exchange_round(int peer) {
  RoundWork work;
  work.staging_bytes = 2 * bytes;
  work.reads.push_back({0, 0, bytes, 0});
  work.sends.push_back({peer, 0, bytes, {}});
  work.receives.push_back({peer, bytes, bytes, {}});
  return work;
}

void run(std::string const& what, StreamPath path, std::filesystem::path const& parent) {
  Comm const comm = Comm::world();
  bool const odd_one = comm.rank() == 1;
  ScratchFolder const folder("abort" + std::to_string(comm.rank()), parent);
  FileSet sources({folder.file("source", std::vector<std::byte>(
                                             odd_one && what == "source" ? bytes / 2 : bytes))},
                  FileSet::Access::read);
  FileSet targets({}, FileSet::Access::write);
  std::atomic<bool> stop = false;
  PathParts parts(path);
  StreamOptions const options =
      parts.on_path({.memory_bytes = 4 * bytes,
                     .exchanging = true,
                     .stall_timeout_seconds = what == "stall" ? 1.0 : 100.0,
                     .stop = &stop});
  if (odd_one && what == "stall") std::this_thread::sleep_for(std::chrono::seconds(60));
  RoundSource const endless = [&, next = 0]() mutable -> std::optional<RoundWork> {
    if (++next == 20 && odd_one && what == "stop") stop = true;
    return exchange_round(1 - comm.rank());
  };
  stream_into(comm, options, sources, targets, endless, {});
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  if (argc != 4) return 2;
  for (auto const path : {reshard::StreamPath::host, reshard::StreamPath::device_with_mpi,
                          reshard::StreamPath::device_with_nccl})
    if (reshard::name(path) == std::string_view(argv[2])) reshard::run(argv[1], path, argv[3]);
  std::fputs("the stream returned\n", stderr);
  return 1;
}
