// The NCCL transport on one GPU: several processes, each of which poses as a host of its own
// (NCCL_HOSTID), exchange messages over sockets on loopback. A functional check: processes that
// share a GPU take turns on it, so the times say nothing about bandwidth.
//   nccl_check [NAME…]
// Exit code: 0, 1 when a check failed, 77 without a GPU or without NCCL. MPI is not needed
// (local_mpi/).

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "core/base/error.hpp"
#include "core/transport/comm.hpp"
#include "core/transport/monitor/patience.hpp"
#include "core/transport/nccl/host_identity.hpp"
#include "core/transport/nccl/nccl_library.hpp"
#include "core/transport/nccl/nccl_transport.hpp"
#include "tests/gpu/local_mpi/mpi.h"
#include "tests/gpu/nccl_traffic.hpp"

namespace reshard::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double patience_seconds = 60;
constexpr int skip_exit_code = 77;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A rank with its device and transport.
class Rank {
 public:
  Rank() : testbed_(device_or_skip(false)), stream_(testbed_.device().new_stream()) {
    NcclOffer const offer = nccl_offer();
    CudaOffer const cuda = cuda_offer();
    NcclRankFacts facts;
    facts.host = host_name();
    facts.host_identity = nccl_host_identity();
    facts.device_id = testbed_.device().id();
    facts.device_name = testbed_.device().name();
    facts.nccl_version = offer.version;
    facts.driver_version = cuda.driver_version;
    facts.runtime_version = cuda.runtime_version;
    transport_ = make_nccl_transport(comm_, open_nccl(), facts, stream_.get(), patience_seconds);
  }

  void exchange(std::vector<std::vector<SentMessage>> const& rounds, std::size_t in_flight,
                std::string const& what) {
    RankMemory memory(testbed_, rounds, comm_.rank());
    comm_.barrier();
    std::vector<std::size_t> left;
    for (std::size_t r = 0; r < rounds.size(); ++r)
      left.push_back(memory.receives(r).size() + memory.sends(r).size());
    Patience patience(patience_seconds, {});
    std::size_t posted = 0;
    std::size_t oldest = 0;
    while (oldest < rounds.size()) {
      for (; posted < rounds.size() && posted < oldest + in_flight; ++posted)
        transport_->post(memory.receives(posted), memory.sends(posted), posted * most_per_round);
      std::vector<Landed> landed;
      transport_->poll(landed);
      for (Landed const& one : landed) {
        expect(left[one.number / most_per_round] > 0, "{}: message {} landed twice", what,
               one.number);
        --left[one.number / most_per_round];
      }
      if (!landed.empty()) patience.begin();
      expect(!landed.empty() || oldest == posted || left[oldest] == 0 || patience.wait(),
             "{}: nothing moved for {} s", what, patience_seconds);
      while (oldest < posted && left[oldest] == 0) ++oldest;
    }
    memory.check(what);
  }

  Comm const& comm() const { return comm_; }
  Testbed& testbed() { return testbed_; }
  Transport& transport() { return *transport_; }

 private:
  static constexpr std::size_t most_per_round = 1'000'000;
  Comm comm_ = Comm::world();
  Testbed testbed_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<Transport> transport_;  // last: what it does uses the others
};

void as_a_host_of_its_own(int rank) {
  ::setenv("NCCL_HOSTID", fmt::format("reshard-check-{}", rank).c_str(), 1);
}

/// Runs `work` and says what it threw; 0 when nothing.
int judged(int rank, void (*work)(int)) {
  try {
    work(rank);
    return 0;
  } catch (std::exception const& failure) {
    std::printf("rank %d: %s\n", rank, failure.what());
    std::fflush(stdout);
    return 1;
  }
}

int exchange_rounds(int number) {
  as_a_host_of_its_own(number);
  return judged(number, [](int) {
    Rank rank;
    for (std::uint64_t seed = 1; seed <= 6; ++seed)
      rank.exchange(random_rounds(seed, rank.comm().size(), 5, 3'000'000), 1 + seed % 3,
                    fmt::format("seed {}", seed));
  });
}

int exchange_many_small(int number) {
  as_a_host_of_its_own(number);
  return judged(number, [](int) {
    Rank rank;
    std::mt19937_64 random(5);
    std::vector<std::vector<SentMessage>> rounds(2);
    for (auto& round : rounds)
      for (int i = 0; i < 500; ++i)
        round.push_back({i % rank.comm().size(),
                         (i + 1 + i / 7 % (rank.comm().size() - 1)) % rank.comm().size(),
                         1 + random() % 16, random()});
    for (auto& round : rounds)
      std::erase_if(round, [](SentMessage const& message) { return message.from == message.to; });
    rank.exchange(rounds, 2, "many small");
  });
}

int exchange_large(int number) {
  as_a_host_of_its_own(number);
  return judged(number, [](int me) {
    Rank rank;
    std::uint64_t const bytes = (std::uint64_t{2} << 30U) + 4096;
    auto const memory = rank.testbed().device().allocate(bytes);
    fill_random(rank.testbed().stream(), memory->data(), bytes, me == 0 ? 11 : 12);
    finish(rank.testbed().stream());
    rank.comm().barrier();
    std::vector<FlatMessage> const message{{1 - me, memory->data() + 1, bytes - 1}};
    if (me == 0)
      rank.transport().post({}, message, 0);
    else
      rank.transport().post(message, {}, 0);
    std::vector<Landed> landed;
    Patience patience(4 * patience_seconds, {});
    for (; landed.empty(); rank.transport().poll(landed))
      expect(patience.wait(), "a large message did not arrive");
    for (std::uint64_t at = 0; at + 4096 <= bytes; at += (std::uint64_t{1} << 26U) - 4096) {
      std::vector<std::byte> const found = rank.testbed().download(memory->data() + at, 4096);
      for (std::uint64_t i = at == 0 ? 1 : 0; i < 4096; ++i)
        expect(found[i] == random_byte(11, at + i), "byte {} of a large message is wrong", at + i);
    }
  });
}

int share_a_gpu(int number) {
  ::setenv("NCCL_HOSTID", "reshard-check", 1);
  return judged(number, [](int me) {
    try {
      Rank const rank;
    } catch (Error const& error) {
      if (me == 0) std::printf("the refusal: %s\n", error.what());
      expect(error.kind() == ErrorKind::resources, "the refusal is of another kind: {}",
             error.sentence());
      return;
    }
    expect(false, "two ranks with one GPU on one host were not refused");
  });
}

/// What rank 0 does when the others fall silent: an Error, or a wait that ends and a cancel() that
/// does not hang.
void survive(Rank& rank, std::vector<FlatMessage> const& expected) {
  rank.transport().post(expected, {}, 0);
  constexpr double silence_seconds = 10;
  Patience patience(silence_seconds, {});
  std::vector<Landed> landed;
  std::string ending = "nothing came";
  try {
    while (patience.wait()) rank.transport().poll(landed);
  } catch (Error const& error) {
    ending = error.sentence();
  }
  std::printf("after a rank was lost: %s\n", ending.c_str());
  expect(landed.empty(), "a message landed that nobody sent");
  auto const begin = Clock::now();
  rank.transport().cancel();
  constexpr double most_seconds = 15;
  expect(seconds_since(begin) < most_seconds, "cancel() took {:.1f} s", seconds_since(begin));
}

int lose_a_rank(int number) {
  as_a_host_of_its_own(number);
  return judged(number, [](int me) {
    Rank rank;
    rank.exchange(random_rounds(3, rank.comm().size(), 2, 100'000), 2, "before the loss");
    rank.comm().barrier();  // what was sent has arrived everywhere
    auto const memory = rank.testbed().device().allocate(1U << 20U);
    if (me == rank.comm().size() - 1) ::_exit(0);
    survive(rank, {{rank.comm().size() - 1, memory->data(), 1U << 20U}});
    // The process ends as the program does after cancel(): nothing of NCCL may hold it.
    std::fflush(nullptr);
    ::_exit(0);
  });
}

struct NcclCheck {
  char const* name;
  int ranks;
  double timeout_seconds;
  int (*work)(int rank);
};

bool run_check(NcclCheck const& check) {
  auto const begin = Clock::now();
  int const code = run_local_ranks(check.ranks, check.timeout_seconds, check.work);
  std::string const verdict = code == 0 ? "ok" : "FAILED";
  print_row("nccl",
            fmt::format("{}, {} rank{}", check.name, check.ranks, check.ranks == 1 ? "" : "s"),
            fmt::format("{:.1f} s{}; functional check, not bandwidth", seconds_since(begin),
                        code == 137 ? ", killed: too slow or stuck" : ""),
            verdict);
  return code == 0;
}

/// Looks for a GPU and NCCL in a process of its own: CUDA does not survive a fork.
int look_for_both() {
  return run_local_ranks(1, patience_seconds, [](int) {
    device_or_skip(false);
    NcclOffer const offer = nccl_offer();
    if (offer.version == 0) {
      std::printf("skipped: %s\n", offer.why_none.c_str());
      return skip_exit_code;
    }
    std::printf("NCCL %s\n", nccl_version_text(offer.version).c_str());
    return 0;
  });
}

int run_checks(int argc, char** argv) {
  for (auto const& [name, value] : {std::pair{"NCCL_SOCKET_IFNAME", "lo"},
                                    {"NCCL_NET", "Socket"},
                                    {"NCCL_IB_DISABLE", "1"},
                                    {"NCCL_P2P_DISABLE", "1"},
                                    {"NCCL_SHM_DISABLE", "1"},
                                    {"NCCL_DEBUG", "WARN"}})
    ::setenv(name, value, 0);
  if (int const code = look_for_both(); code != 0) return code;
  bool all = true;
  for (NcclCheck const& check : {NcclCheck{"random rounds", 1, 60, exchange_rounds},
                                 {"random rounds", 2, 120, exchange_rounds},
                                 {"random rounds", 4, 180, exchange_rounds},
                                 {"many small messages", 3, 90, exchange_many_small},
                                 {"a message above 2 GiB", 2, 180, exchange_large},
                                 {"two ranks share a GPU", 2, 60, share_a_gpu},
                                 {"a rank is lost", 3, 90, lose_a_rank}}) {
    bool wanted = argc == 1;
    for (int a = 1; a < argc; ++a) wanted = wanted || std::strcmp(argv[a], check.name) == 0;
    if (wanted) all = run_check(check) && all;
  }
  return all ? 0 : 1;
}

}  // namespace
}  // namespace reshard::test

int main(int argc, char** argv) { return reshard::test::run_checks(argc, argv); }
