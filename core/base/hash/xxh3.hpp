#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace reshard {

/// XXH3-64 with seed 0 of bytes that come in parts: the number that `xxhsum -H3` prints.
class Xxh3 {
 public:
  Xxh3();

  void add(std::span<std::byte const> bytes);
  /// The hash of all bytes so far; more may follow.
  std::uint64_t value() const;
  /// XXH3-128 of all bytes so far, as xxh3_128() writes it.
  std::string digits_128() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// XXH3-128 with seed 0 as 32 lower-case hexadecimal digits, the high half first: the output of
/// `xxhsum -H2`.
std::string xxh3_128(std::string_view text);

}  // namespace reshard
