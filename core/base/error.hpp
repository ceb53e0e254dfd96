#pragma once

#include <exception>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace reshard {

/// The kinds of errors. Each kind has one exit code, listed in `reshard --help`.
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

#ifdef RESHARD_RECORD_REFUSALS
/// Appends a line about a refusal to the file in the variable RESHARD_REFUSALS_TO, if it is set.
/// Each different refusal of a test is recorded once (tests/refusals/README.md).
void record_refusal(ErrorKind kind, std::string_view format, std::string_view sentence,
                    std::source_location const& place);

/// The format of a message, and the place where it is used.
template <class... Args>
class MessageFormat {
 public:
  template <class Text>
  consteval MessageFormat(Text const& text,
                          std::source_location place = std::source_location::current())
      : text_(text), place_(place) {}

  fmt::format_string<Args...> text() const { return text_; }
  std::source_location const& place() const { return place_; }

 private:
  fmt::format_string<Args...> text_;
  std::source_location place_;
};
#endif

/// The one exception type: a kind and a sentence with the place, the disagreement (expected and
/// found) and the next step.
class Error : public std::exception {
 public:
#ifdef RESHARD_RECORD_REFUSALS
  Error(ErrorKind kind, std::string sentence,
        std::source_location const& place = std::source_location::current(),
        std::string_view format = {})
      : kind_(kind), sentence_(std::move(sentence)) {
    record_refusal(kind_, format, sentence_, place);
  }
#else
  Error(ErrorKind kind, std::string sentence) : kind_(kind), sentence_(std::move(sentence)) {}
#endif

  ErrorKind kind() const { return kind_; }
  std::string const& sentence() const { return sentence_; }
  char const* what() const noexcept override { return sentence_.c_str(); }

  /// The error with a place prepended to its sentence: "place: sentence".
  Error in(std::string_view place) const {
    Error error = *this;
    error.sentence_ = fmt::format("{}: {}", place, sentence_);
    error.agreed_ = false;
    return error;
  }

  /// Whether the source is complete but the model map does not describe the form of its weights: a
  /// job that keeps names can copy them.
  bool is_of_unknown_form() const { return of_unknown_form_; }
  Error of_unknown_form() const {
    Error error = *this;
    error.of_unknown_form_ = true;
    return error;
  }

  /// Whether all ranks of the job throw this error at the same point, so that none waits for
  /// another.
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
  bool of_unknown_form_ = false;
};

/// Throws an Error of this kind; the arguments are those of fmt::format.
template <class... Args>
#ifdef RESHARD_RECORD_REFUSALS
[[noreturn]] void fail(ErrorKind kind, MessageFormat<std::type_identity_t<Args>...> format,
                       Args&&... args) {
  fmt::string_view const text = format.text();
  throw Error(kind, fmt::format(format.text(), std::forward<Args>(args)...), format.place(),
              {text.data(), text.size()});
}
#else
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}
#endif

/// A broken invariant of this program (never of its input).
[[noreturn]] void broken(std::string_view what, char const* file, int line);

#define RESHARD_EXPECT(condition)                                        \
  do {                                                                   \
    if (!(condition)) ::reshard::broken(#condition, __FILE__, __LINE__); \
  } while (false)

}  // namespace reshard
