#pragma once

#include <optional>
#include <string>

#include "core/base/text/json.hpp"

namespace reshard {

/// A descriptor that is closed.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

/// The requests of one other process, and their answers, over a Unix socket (SOCK_STREAM). A
/// message is four bytes, little endian: the number of bytes of a JSON document, then these bytes.
/// A descriptor of an answer comes with its first byte (SCM_RIGHTS).
class Channel {
 public:
  static constexpr std::uint32_t most_request_bytes = std::uint32_t{1} << 20;

  /// An Error of kind usage where the descriptor is no such socket. It stays the caller's.
  explicit Channel(int descriptor);

  /// Waits for a request; nullopt when the other process has closed its end. Errors: usage (too
  /// long, cut short), source (no JSON).
  std::optional<Json> next() const;
  /// False if the other process is gone. `descriptor`: -1 for none.
  [[nodiscard]] bool answer(Json const& document, int descriptor = -1) const;

 private:
  /// False at the end of the stream before the first byte.
  bool fill(std::string& into) const;

  int descriptor_;
};

}  // namespace reshard
