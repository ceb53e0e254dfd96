#include "tests/gpu/local_mpi/mpi.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace {

constexpr int most_ranks = 8;
constexpr std::size_t most_bytes = 1U << 16U;
constexpr int too_large = 1;

/// What one collective call of every rank leaves for the others. A rank begins call k + 2 only when
/// it has ended call k + 1, for which all ranks have ended call k: so two are enough.
struct Board {
  std::atomic<std::uint64_t> arrived;  ///< ranks, counted over all calls that used this board
  std::array<std::array<std::byte, most_bytes>, most_ranks> data;
};

struct Shared {
  std::array<Board, 2> boards;
  std::atomic<int> abort_code;
  std::atomic<int> in_last_barrier;  ///< ranks in the barrier of the duplicate
};

Shared* shared = nullptr;
int my_rank = 0;
int rank_count = 1;
std::uint64_t calls = 0;  // begun by this rank

/// The reduction under way; comm.cpp has one at a time.
struct Pending {
  std::uint64_t call = 0;
  void* to = nullptr;
  int count = 0;
  MPI_Datatype type = MPI_BYTE;
  MPI_Op operation = MPI_MIN;
};
Pending pending;

constexpr MPI_Comm duplicate_of_world = 2;
constexpr MPI_Request reduction = 1;
constexpr MPI_Request last_barrier = 2;

std::size_t size_of(MPI_Datatype type) {
  switch (type) {
    case MPI_BYTE: return 1;
    case MPI_UINT32_T: return 4;
    case MPI_INT64_T:
    case MPI_UINT64_T: return 8;
  }
  return 1;
}

void look_for_abort() {
  if (int const code = shared->abort_code.load()) ::_exit(code);
}

Board& board_of(std::uint64_t call) { return shared->boards[call % 2]; }

/// Begins a call: this rank's bytes are there for the others.
std::uint64_t put(void const* bytes, std::size_t size) {
  std::uint64_t const call = calls++;
  Board& board = board_of(call);
  if (size > 0) std::memcpy(board.data[static_cast<std::size_t>(my_rank)].data(), bytes, size);
  board.arrived.fetch_add(1);
  return call;
}

bool all_have_put(std::uint64_t call) {
  look_for_abort();
  return board_of(call).arrived.load() >= (call / 2 + 1) * static_cast<std::uint64_t>(rank_count);
}

void wait_for(std::uint64_t call) {
  while (!all_have_put(call)) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

std::byte const* bytes_of(std::uint64_t call, int rank) {
  return board_of(call).data[static_cast<std::size_t>(rank)].data();
}

template <class T>
T combined(MPI_Op operation, T a, T b) {
  switch (operation) {
    case MPI_MIN: return std::min(a, b);
    case MPI_MAX: return std::max(a, b);
    case MPI_SUM: return static_cast<T>(a + b);
    case MPI_BXOR: return static_cast<T>(a ^ b);
  }
  return a;
}

template <class T>
void reduce(Pending const& work) {
  for (int i = 0; i < work.count; ++i) {
    T result{};
    for (int r = 0; r < rank_count; ++r) {
      T value{};
      std::memcpy(&value, bytes_of(work.call, r) + static_cast<std::size_t>(i) * sizeof(T),
                  sizeof(T));
      result = r == 0 ? value : combined(work.operation, result, value);
    }
    std::memcpy(static_cast<std::byte*>(work.to) + static_cast<std::size_t>(i) * sizeof(T), &result,
                sizeof(T));
  }
}

void complete(Pending const& work) {
  if (work.type == MPI_UINT32_T)
    reduce<std::uint32_t>(work);
  else
    reduce<std::int64_t>(work);
}

}  // namespace

int MPI_Init_thread(int*, char***, int, int* provided) {
  *provided = MPI_THREAD_MULTIPLE;
  return MPI_SUCCESS;
}
int MPI_Initialized(int* initialised) {
  *initialised = 1;
  return MPI_SUCCESS;
}

int MPI_Finalize() { return MPI_SUCCESS; }

int MPI_Get_library_version(char* text, int* length) {
  *length =
      std::snprintf(text, MPI_MAX_LIBRARY_VERSION_STRING, "a stand-in for MPI on one machine");
  return MPI_SUCCESS;
}

int MPI_Abort(MPI_Comm, int code) {
  shared->abort_code.store(code == 0 ? 1 : code);
  ::_exit(code);
}

int MPI_Comm_rank(MPI_Comm, int* rank) {
  *rank = my_rank;
  return MPI_SUCCESS;
}

int MPI_Comm_size(MPI_Comm, int* size) {
  *size = rank_count;
  return MPI_SUCCESS;
}

int MPI_Comm_dup(MPI_Comm, MPI_Comm* duplicate) {
  *duplicate = duplicate_of_world;
  return MPI_SUCCESS;
}

int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler) { return MPI_SUCCESS; }

int MPI_Error_string(int, char* text, int* length) {
  *length = std::snprintf(text, MPI_MAX_ERROR_STRING, "more bytes than the stand-in for MPI takes");
  return MPI_SUCCESS;
}

int MPI_Barrier(MPI_Comm) {
  wait_for(put(nullptr, 0));
  return MPI_SUCCESS;
}

int MPI_Ibarrier(MPI_Comm, MPI_Request* request) {
  shared->in_last_barrier.fetch_add(1);
  *request = last_barrier;
  return MPI_SUCCESS;
}

int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm) {
  std::size_t const bytes = static_cast<std::size_t>(count) * size_of(type);
  if (bytes > most_bytes) return too_large;
  std::uint64_t const call = put(data, my_rank == root ? bytes : 0);
  wait_for(call);
  if (bytes > 0) std::memcpy(data, bytes_of(call, root), bytes);
  return MPI_SUCCESS;
}

int MPI_Iallreduce(void const* from, void* to, int count, MPI_Datatype type, MPI_Op operation,
                   MPI_Comm, MPI_Request* request) {
  std::size_t const bytes = static_cast<std::size_t>(count) * size_of(type);
  if (bytes > most_bytes) return too_large;
  pending = {put(from == MPI_IN_PLACE ? to : from, bytes), to, count, type, operation};
  *request = reduction;
  return MPI_SUCCESS;
}

int MPI_Test(MPI_Request* request, int* done, MPI_Status*) {
  if (*request == last_barrier) {
    look_for_abort();
    *done = shared->in_last_barrier.load() >= rank_count ? 1 : 0;
    return MPI_SUCCESS;
  }
  *done = *request == MPI_REQUEST_NULL || all_have_put(pending.call) ? 1 : 0;
  if (*done == 0 || *request == MPI_REQUEST_NULL) return MPI_SUCCESS;
  complete(pending);
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

int MPI_Allreduce(void const* from, void* to, int count, MPI_Datatype type, MPI_Op operation,
                  MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (int const code = MPI_Iallreduce(from, to, count, type, operation, comm, &request);
      code != MPI_SUCCESS)
    return code;
  wait_for(pending.call);
  complete(pending);
  return MPI_SUCCESS;
}

int MPI_Allgather(void const* from, int from_count, MPI_Datatype from_type, void* to, int to_count,
                  MPI_Datatype to_type, MPI_Comm comm) {
  std::vector<int> const counts(static_cast<std::size_t>(rank_count), to_count);
  std::vector<int> places;
  for (int r = 0; r < rank_count; ++r) places.push_back(r * to_count);
  return MPI_Allgatherv(from, from_count, from_type, to, counts.data(), places.data(), to_type,
                        comm);
}

int MPI_Allgatherv(void const* from, int from_count, MPI_Datatype from_type, void* to,
                   int const* counts, int const* places, MPI_Datatype to_type, MPI_Comm) {
  std::size_t const mine = static_cast<std::size_t>(from_count) * size_of(from_type);
  if (mine > most_bytes) return too_large;
  std::uint64_t const call = put(from, mine);
  wait_for(call);
  for (int r = 0; r < rank_count; ++r) {
    std::size_t const bytes = static_cast<std::size_t>(counts[r]) * size_of(to_type);
    if (bytes > 0)
      std::memcpy(
          static_cast<std::byte*>(to) + static_cast<std::size_t>(places[r]) * size_of(to_type),
          bytes_of(call, r), bytes);
  }
  return MPI_SUCCESS;
}

namespace reshard::test {
namespace {

void kill_all(std::vector<pid_t> const& children) {
  for (pid_t const child : children)
    if (child > 0) ::kill(child, SIGKILL);
}

pid_t start_rank(int rank, int (*work)(int)) {
  std::fflush(nullptr);
  pid_t const child = ::fork();
  if (child != 0) return child;
  my_rank = rank;
  int const code = work(rank);
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

int run_local_ranks(int ranks, double timeout_seconds, int (*work)(int rank)) {
  if (ranks < 1 || ranks > most_ranks) return 2;
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  shared = new (memory) Shared{};
  rank_count = ranks;
  calls = 0;
  std::vector<pid_t> children;
  for (int r = 0; r < ranks; ++r) children.push_back(start_rank(r, work));
  auto const begin = std::chrono::steady_clock::now();
  int worst = 0;
  for (int left = ranks; left > 0;) {
    int status = 0;
    pid_t const ended = ::waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      --left;
      std::replace(children.begin(), children.end(), ended, pid_t{0});
      worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
      continue;
    }
    if (std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(timeout_seconds))
      kill_all(children);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ::munmap(memory, sizeof(Shared));
  shared = nullptr;
  return worst;
}

}  // namespace reshard::test
