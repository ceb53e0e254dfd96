#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/files/file.hpp"

namespace reshard::dcp {

/// The bytes of a file from front to back, through a small buffer. Reading past the end is an Error
/// of kind source (the file is cut short).
class PickleSource {
 public:
  explicit PickleSource(File const& file);

  /// The position of the next byte.
  std::uint64_t at() const {
    return begin_at_ + static_cast<std::uint64_t>(next_ - buffer_.data());
  }
  std::uint64_t size_bytes() const { return size_bytes_; }
  std::uint64_t left() const { return size_bytes_ - at(); }

  std::uint8_t byte() {
    if (next_ == end_) refill(1);
    return static_cast<std::uint8_t>(*next_++);
  }
  /// The next bytes, valid until the next call. Pre: count <= largest_take.
  static constexpr std::size_t largest_take = std::size_t{1} << 18;
  std::string_view take(std::size_t count) {
    if (static_cast<std::size_t>(end_ - next_) < count) refill(count);
    char const* const taken = next_;
    next_ += count;
    return {taken, count};
  }
  /// The last byte taken. Pre: there was one.
  std::uint8_t taken() const { return static_cast<std::uint8_t>(next_[-1]); }
  /// The byte at `ahead` after the next one, without taking it. Pre: ahead < largest_take.
  std::uint8_t peek(std::size_t ahead) {
    if (static_cast<std::size_t>(end_ - next_) <= ahead) refill(ahead + 1);
    return static_cast<std::uint8_t>(next_[ahead]);
  }
  /// An unsigned number of at most 8 bytes, lowest byte first.
  template <std::size_t bytes>
  std::uint64_t number() {
    std::string_view const digits = take(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = bytes; i > 0; --i)
      value = value << 8 | static_cast<unsigned char>(digits[i - 1]);
    return value;
  }
  /// An unsigned number of `bytes` bytes.
  std::uint64_t number(std::size_t bytes);
  void skip(std::uint64_t count);
  /// The last bytes of the file, at most `count`.
  std::string tail(std::size_t count) const;

 private:
  void refill(std::size_t needed);
  [[noreturn]] void cut_short(std::uint64_t needed) const;

  File const& file_;
  std::uint64_t size_bytes_ = 0;
  std::vector<char> buffer_;
  std::uint64_t begin_at_ = 0;  ///< position of the buffer's first byte
  char const* next_ = nullptr;
  char const* end_ = nullptr;
};

}  // namespace reshard::dcp
