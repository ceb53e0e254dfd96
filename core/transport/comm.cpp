#include "core/transport/comm.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <thread>

#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/files/file.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/threads/activity.hpp"
#include "core/base/threads/stall_clock.hpp"
#include "core/transport/lone_start.hpp"

namespace reshard {
namespace {

constexpr std::size_t largest_message = std::size_t{1} << 30;

// Poll interval of a rank that waits for the others to agree.
constexpr std::chrono::microseconds agreement_nap{200};

// Time for the others to meet the same error.
constexpr std::chrono::seconds patience_with_last_words{2};

std::int64_t reduce(MPI_Comm comm, std::int64_t value, MPI_Op operation) {
  Waiting const waiting;
  if (comm == MPI_COMM_NULL) return value;
  std::int64_t result = 0;
  check_mpi(MPI_Allreduce(&value, &result, 1, MPI_INT64_T, operation, comm), "MPI_Allreduce");
  return result;
}

/// Whether the launcher (mpirun or srun) has put ranks on several hosts. MPI itself cannot be asked
/// without messages.
bool has_several_hosts() {
  auto const number = [](char const* name) {
    char const* const text = std::getenv(name);
    return text == nullptr ? 0L : std::strtol(text, nullptr, 10);
  };
  return number("SLURM_STEP_NUM_NODES") > 1 ||
         number("OMPI_COMM_WORLD_SIZE") > number("OMPI_COMM_WORLD_LOCAL_SIZE");
}

// Open MPI 4.1.4 crashes in MPI_Init (in mca_btl_tcp) when TCP brings it a message of a rank that
// has left MPI_Init already. Ranks leave it together, except for the delay of a host: that is
// waited for before the first message.
constexpr std::chrono::milliseconds pause_after_init{300};

/// Whether this process is inside MPI_Init. An MPI that cannot start ends the process there,
/// usually with exit code 1, which has another meaning in this program.
std::atomic<bool> is_starting = false;

bool has_mpi() {
  int initialised = 0;
  return MPI_Initialized(&initialised) == MPI_SUCCESS && initialised != 0;
}

/// The exit code of a process that ends with `code`.
int code_of_end(int code) {
  if (!is_starting.exchange(false)) return code;
  constexpr std::string_view sentence =
      "error: MPI could not start, and has ended this process. Its reason is above. Check the "
      "launcher, and that TMPDIR or /tmp can be written.\n";
  [[maybe_unused]] auto const said = ::write(STDERR_FILENO, sentence.data(), sentence.size());
  return exit_code(ErrorKind::resources);
}

[[noreturn]] void end_at_once(int code) {
  ::syscall(SYS_exit_group, code);
  std::abort();
}

/// The atexit() handler.
void look_at_exit() {
  if (is_starting) end_at_once(code_of_end(0));
}

}  // namespace
}  // namespace reshard

/// In the place of the C library's, for MPI as well: Open MPI ends a process in this way.
extern "C" [[gnu::visibility("default")]] void _exit(int code) {
  reshard::end_at_once(reshard::code_of_end(code));
}

namespace reshard {
namespace {

void initialise_mpi(int* argc, char*** argv) {
  static bool const looks = std::atexit(look_at_exit) == 0;
  int provided = 0;
  is_starting = looks;
  int const code = MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
  is_starting = false;
  check_mpi(code, "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED)
    fail(ErrorKind::resources,
         "this MPI provides thread level {}, MPI_THREAD_SERIALIZED ({}) is needed. Use an MPI "
         "built with threads.",
         provided, MPI_THREAD_SERIALIZED);
}

}  // namespace

void check_mpi(int code, char const* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ErrorKind::internal, "{} failed: {}. Check the MPI installation and the network.", call,
       text);
}

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown";
  std::string all(text.data());
  all = all.substr(0, all.find_first_of("\r\n"));
  return all.substr(0, all.find_last_not_of(' ') + 1);
}

MpiSession::MpiSession(int* argc, char*** argv) {
  if (is_started_alone(environ)) return;
  initialise_mpi(argc, argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (has_several_hosts()) std::this_thread::sleep_for(pause_after_init);
}

MpiSession::~MpiSession() {
  if (has_mpi()) MPI_Finalize();
}

Comm Comm::world() {
  if (!has_mpi()) return {MPI_COMM_NULL, MPI_COMM_NULL, 0, 1};
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  static MPI_Comm last_words = MPI_COMM_NULL;
  if (last_words == MPI_COMM_NULL && size > 1)
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &last_words), "MPI_Comm_dup");
  return {MPI_COMM_WORLD, last_words, rank, size};
}

void Comm::barrier() const {
  Waiting const waiting;
  if (comm_ == MPI_COMM_NULL) return;
  check_mpi(MPI_Barrier(comm_), "MPI_Barrier");
}
std::int64_t Comm::min(std::int64_t value) const { return reduce(comm_, value, MPI_MIN); }
std::int64_t Comm::max(std::int64_t value) const { return reduce(comm_, value, MPI_MAX); }
std::int64_t Comm::sum(std::int64_t value) const { return reduce(comm_, value, MPI_SUM); }

void Comm::xor_all(std::span<std::uint32_t> values) const {
  Waiting const waiting;
  if (values.empty() || comm_ == MPI_COMM_NULL) return;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), narrow<int>(values.size()), MPI_UINT32_T,
                          MPI_BXOR, comm_),
            "MPI_Allreduce");
}

void Comm::xor_all(std::span<std::uint64_t> values) const {
  Waiting const waiting;
  if (values.empty() || comm_ == MPI_COMM_NULL) return;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), narrow<int>(values.size()), MPI_UINT64_T,
                          MPI_BXOR, comm_),
            "MPI_Allreduce");
}

std::string Comm::broadcast(std::string bytes, int root) const {
  Waiting const waiting;
  if (comm_ == MPI_COMM_NULL) return bytes;
  std::uint64_t size = bytes.size();
  check_mpi(MPI_Bcast(&size, 1, MPI_UINT64_T, root, comm_), "MPI_Bcast");
  bytes.resize(size);
  for (std::size_t done = 0; done < size; done += largest_message)
    check_mpi(MPI_Bcast(bytes.data() + done, narrow<int>(std::min(largest_message, size - done)),
                        MPI_BYTE, root, comm_),
              "MPI_Bcast");
  return bytes;
}

std::vector<std::string> Comm::all_gather(std::string const& bytes) const {
  Waiting const waiting;
  if (comm_ == MPI_COMM_NULL) return {bytes};
  auto const ranks = static_cast<std::size_t>(size_);
  std::vector<std::uint64_t> sizes(ranks);
  std::uint64_t const mine = bytes.size();
  check_mpi(MPI_Allgather(&mine, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, comm_),
            "MPI_Allgather");
  std::uint64_t total = 0;
  for (std::uint64_t const size : sizes) total += size;
  std::vector<std::string> result(ranks);
  if (total < largest_message) {
    std::string all(total, '\0');
    std::vector<int> counts(ranks);
    std::vector<int> places(ranks);
    for (std::size_t r = 0, at = 0; r < ranks; at += sizes[r], ++r) {
      counts[r] = narrow<int>(sizes[r]);
      places[r] = narrow<int>(at);
    }
    check_mpi(MPI_Allgatherv(bytes.data(), narrow<int>(mine), MPI_BYTE, all.data(), counts.data(),
                             places.data(), MPI_BYTE, comm_),
              "MPI_Allgatherv");
    for (std::size_t r = 0; r < ranks; ++r)
      result[r].assign(all, static_cast<std::size_t>(places[r]), sizes[r]);
    return result;
  }
  for (std::size_t r = 0; r < ranks; ++r)
    result[r] =
        broadcast(static_cast<int>(r) == rank_ ? bytes : std::string(), static_cast<int>(r));
  return result;
}

void Comm::end_with(Error const& error) const {
  if (size_ == 1 || error.is_agreed()) throw error;
  Waiting const waiting;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(last_words_, &request), "MPI_Ibarrier");
  auto const deadline = std::chrono::steady_clock::now() + patience_with_last_words;
  for (int all_here = 0; std::chrono::steady_clock::now() < deadline;
       std::this_thread::sleep_for(agreement_nap)) {
    check_mpi(MPI_Test(&request, &all_here, MPI_STATUS_IGNORE), "MPI_Test");
    if (all_here != 0) throw error.agreed();
  }
  abort(error);
}

void Comm::abort(int code) const {
  if (comm_ != MPI_COMM_NULL) MPI_Abort(comm_, code);
  std::_Exit(code);
}

void Comm::abort(Error const& error) const {
  fmt::print(stderr, "error: rank {}: {}\n", rank_, error.sentence());
  std::fflush(stderr);
  abort(exit_code(error.kind()));
}

namespace {

/// Every rank throws the error of rank `first`.
[[noreturn]] void throw_error_of(Comm const& comm, int first, std::optional<Error> const& mine) {
  std::string packed;
  if (comm.rank() == first)
    packed = fmt::format("{} {}", static_cast<int>(mine->kind()), mine->sentence());
  packed = comm.broadcast(std::move(packed), first);
  auto const space = packed.find(' ');
  auto const kind = static_cast<ErrorKind>(std::stoi(packed.substr(0, space)));
  throw Error(kind, packed.substr(space + 1)).agreed();
}

/// The state of the ranks' steps.
struct Progress {
  int first_failed = 0;  ///< the lowest rank whose step threw; the number of ranks when none did
  bool all_done = false;
};

/// One rank's steps until it is done or has failed.
class Steps {
 public:
  Steps(Comm const& comm, double timeout_seconds, std::function<bool()> const& step)
      : comm_(comm), timeout_seconds_(timeout_seconds), step_(step) {}

  void take_one() {
    if (done_ || failure_) return;
    failure_ = capture([this] { done_ = step_(); });
  }

  /// Goes on with the steps while the ranks learn from each other how far they were when this was
  /// called.
  Progress agree() {
    if (comm_.handle() == MPI_COMM_NULL) return {failure_ ? comm_.rank() : comm_.size(), done_};
    std::array<std::int64_t, 2> const mine = {failure_ ? comm_.rank() : comm_.size(),
                                              done_ ? 1 : 0};
    std::array<std::int64_t, 2> least = {};
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Iallreduce(mine.data(), least.data(), 2, MPI_INT64_T, MPI_MIN, comm_.handle(),
                             &request),
              "MPI_Iallreduce");
    Waiting const activity;  // with a watch of its own
    StallClock waiting(timeout_seconds_);
    for (int agreed = 0;;) {
      check_mpi(MPI_Test(&request, &agreed, MPI_STATUS_IGNORE), "MPI_Test");
      if (agreed != 0) return {static_cast<int>(least[0]), least[1] == 1};
      take_one();
      if (waiting.is_over())
        comm_.abort(failure_.value_or(Error(
            ErrorKind::stall,
            fmt::format(
                "no message from another rank for {} s. Check the hosts of this job, then run "
                "again.",
                timeout_seconds_))));
      std::this_thread::sleep_for(agreement_nap);
    }
  }

  std::optional<Error> const& failure() const { return failure_; }

 private:
  Comm const& comm_;
  double timeout_seconds_;
  std::function<bool()> const& step_;
  bool done_ = false;
  std::optional<Error> failure_;
};

}  // namespace

void together(Comm const& comm, std::function<void()> const& work) {
  std::optional<Error> const mine = capture(work);
  auto const first = static_cast<int>(comm.min(mine ? comm.rank() : comm.size()));
  if (first < comm.size()) throw_error_of(comm, first, mine);
}

void together_step_by_step(Comm const& comm, double timeout_seconds,
                           std::function<bool()> const& step) {
  Steps steps(comm, timeout_seconds, step);
  for (;;) {
    steps.take_one();
    Progress const progress = steps.agree();
    if (progress.first_failed < comm.size())
      throw_error_of(comm, progress.first_failed, steps.failure());
    if (progress.all_done) return;
  }
}

}  // namespace reshard
