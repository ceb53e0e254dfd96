#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include "core/base/capture.hpp"
#include "core/base/error.hpp"

namespace reshard {

/// MPI for the life of the program: initialised here (MPI_THREAD_MULTIPLE), finalised at the end of
/// main. Not in a process without a launcher (is_started_alone), where failures of MPI's own files
/// and servers then have no effect. A process that MPI ends inside MPI_Init exits with the code of
/// ErrorKind::resources and a sentence on stderr.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(MpiSession const&) = delete;
  MpiSession& operator=(MpiSession const&) = delete;
};

/// The ranks of the job. Every call but rank() and size() is collective unless its comment states
/// otherwise. A single rank makes no call to MPI.
class Comm {
 public:
  static Comm world();

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// MPI_COMM_NULL in a process without a launcher.
  MPI_Comm handle() const { return comm_; }

  void barrier() const;
  std::int64_t min(std::int64_t value) const;
  std::int64_t max(std::int64_t value) const;
  std::int64_t sum(std::int64_t value) const;
  /// Replaces each element by its xor over the ranks.
  void xor_all(std::span<std::uint32_t> values) const;
  void xor_all(std::span<std::uint64_t> values) const;
  /// The bytes of `root` on every rank.
  std::string broadcast(std::string bytes, int root) const;
  /// The bytes of every rank, in rank order, on every rank. Any size: messages are split below 1
  /// GiB.
  std::vector<std::string> all_gather(std::string const& bytes) const;

  /// For an Error that ends the work of this rank: throws it if every rank throws it as well
  /// (is_agreed(), or all ranks call this within a moment). An Error of some ranks only ends the
  /// job on every rank, as others may wait indefinitely.
  [[noreturn]] void end_with(Error const& error) const;

  /// Ends the job on every rank with this exit code, without agreement; for failures inside a
  /// collective.
  [[noreturn]] void abort(int code) const;
  /// abort() with the exit code of the error, after its sentence and this rank's number were
  /// written to stderr.
  [[noreturn]] void abort(Error const& error) const;

 private:
  Comm(MPI_Comm comm, MPI_Comm last_words, int rank, int size)
      : comm_(comm), last_words_(last_words), rank_(rank), size_(size) {}
  MPI_Comm comm_;
  MPI_Comm last_words_;  ///< for end_with()
  int rank_;
  int size_;
};

/// The MPI library's version string, on one line: "Open MPI v4.1.4, package: ...". May be called
/// before MpiSession begins.
std::string mpi_library();

/// Throws an internal Error with MPI's own text when `code` is not MPI_SUCCESS.
void check_mpi(int code, char const* call);

/// Runs `work` on every rank (it makes no collective call). If it fails on some rank, every rank
/// throws the error of the lowest one. Collective.
void together(Comm const& comm, std::function<void()> const& work);

/// together() for work that waits for other ranks by other means than MPI: `step` is called
/// repeatedly until it returns true on every rank, or throws on one of them. Then every rank throws
/// the error of the lowest one at once, also ranks whose steps would have waited for the failed
/// one. A rank without a heartbeat for `timeout_seconds` ends the job with exit code 8.
void together_step_by_step(Comm const& comm, double timeout_seconds,
                           std::function<bool()> const& step);

}  // namespace reshard
