#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/containers/torch/pickle/pickle_opcodes.hpp"

namespace reshard::pickle {

/// An int as Python's pickler writes it.
void append_integer(std::string& out, std::int64_t value);

/// Writes opcodes of protocol 2 and keeps the memo. Strings and globals are written once and
/// fetched from the memo after that.
class Emitter {
 public:
  void op(Op code) { byte(static_cast<std::uint8_t>(code)); }
  void protocol();

  /// Stores the value on top of the stack in the memo, under the next number.
  std::uint32_t store();
  void fetch(std::uint32_t number);

  void string(std::string_view text);
  /// A string that is not fetched from the memo (it is still stored there).
  void unshared_string(std::string_view text);
  /// A name with a dot is an Error of kind source.
  void global(std::string_view module, std::string_view name);
  void integer(std::int64_t value) { append_integer(out_, value); }
  /// Little-endian two's complement, shortest form.
  void long_integer(std::string_view bytes);
  void real(double value);
  /// The tuple of the `count` values on top of the stack; above three, a mark lies below them. All
  /// but the empty tuple are stored.
  void close_tuple(std::size_t count);
  void close_tuple_unstored(std::size_t count);
  /// Calls the value below the tuple on top, and stores the result.
  std::uint32_t call();

  std::string take() { return std::move(out_); }

 private:
  void byte(std::uint64_t value) { out_.push_back(static_cast<char>(value & 0xff)); }

  std::string out_;
  std::uint32_t stored_ = 0;
  std::unordered_map<std::string, std::uint32_t> strings_;
  std::unordered_map<std::string, std::uint32_t> globals_;  ///< "module\nname"
};

}  // namespace reshard::pickle
