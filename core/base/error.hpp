#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace reshard {

/// What kind of thing went wrong. Each kind has one exit code, listed in `reshard --help`.
enum class ErrorKind {
  usage,        ///< 2: the command line or the job spec is wrong
  source,       ///< 3: the source is damaged, hostile, incomplete or of an unsupported form
  target,       ///< 4: the target exists, is locked, or is not ours to replace
  io,           ///< 5: the operating system failed a read or a write; the source changed under us
  resources,    ///< 6: not enough disk, memory or ranks
  self_check,   ///< 7: our own output did not verify; nothing was published
  stall,        ///< 8: a rank stalled or was lost
  internal,     ///< 70: a bug of this program
  interrupted,  ///< 75: stopped by a signal; nothing was published
};

/// The process exit code of a kind (the numbers above).
int exit_code(ErrorKind kind);

/// The one exception type: a kind and a sentence that says where, what disagrees (expected against
/// found) and what to do.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string sentence) : kind_(kind), sentence_(std::move(sentence)) {}

  ErrorKind kind() const { return kind_; }
  std::string const& sentence() const { return sentence_; }
  char const* what() const noexcept override { return sentence_.c_str(); }

  /// The same error with a place put in front: "place: sentence".
  Error in(std::string_view place) const {
    return {kind_, fmt::format("{}: {}", place, sentence_)};
  }

  /// Whether every rank of the job throws this error, now: none waits for another.
  bool is_agreed() const { return agreed_; }
  Error agreed() const {
    Error error = *this;
    error.agreed_ = true;
    return error;
  }

 private:
  ErrorKind kind_;
  std::string sentence_;
  bool agreed_ = false;
};

/// Throws an Error of this kind; the arguments are those of fmt::format.
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

/// A broken invariant of this program (never of its input).
[[noreturn]] void broken(std::string_view what, char const* file, int line);

#define RESHARD_EXPECT(condition)                                        \
  do {                                                                   \
    if (!(condition)) ::reshard::broken(#condition, __FILE__, __LINE__); \
  } while (false)

}  // namespace reshard
