#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/containers/dcp/metadata/metadata.hpp"
#include "core/containers/dcp/metadata/metadata_values.hpp"
#include "core/containers/torch/pickle/pickle_opcodes.hpp"

namespace reshard::dcp {

/// Writes opcodes of pickle protocol 4. In the compact style immutable values (names, classes,
/// sizes) are written once, stored in the memo and fetched from there after that; lists, dicts and
/// objects never are, as Python code may change them.
class Emitter {
 public:
  using Op = pickle::Op;
  static constexpr std::uint32_t not_stored = 0xffffffff;
  /// Memo numbers below this are fetched with two bytes, the others with five.
  static constexpr std::uint32_t short_numbers = 256;

  explicit Emitter(MetadataStyle style) : compact_(style == MetadataStyle::compact) {}

  bool compact() const { return compact_; }
  /// The number of values in the memo.
  std::uint32_t stored() const { return stored_; }
  void reserve(std::size_t bytes) { out_.reserve(bytes); }
  std::string take() { return std::move(out_); }

  void protocol();
  void op(Op code) { out_.push_back(static_cast<char>(code)); }
  void integer(std::int64_t value);
  void boolean(bool value) { op(value ? Op::newtrue : Op::newfalse); }
  void string(std::string_view text);
  /// Pre: no two modules have a global of the same name, and the name outlives the emitter.
  void global(std::string_view module, std::string_view name);
  /// An object without arguments; the caller writes its state next.
  void new_object(std::string_view module, std::string_view name);
  /// A tuple of `count` values that `emit(i)` writes.
  template <class Emit>
  void tuple(std::size_t count, Emit emit) {
    constexpr Op short_tuples[] = {Op::empty_tuple, Op::tuple1, Op::tuple2, Op::tuple3};
    bool const marked = count > 3 || (count > 0 && !compact_);
    if (marked) op(Op::mark);
    for (std::size_t i = 0; i < count; ++i) emit(i);
    op(marked ? Op::tuple : short_tuples[count]);
  }
  /// `count` entries that `emit(i)` writes, added by `add` (APPENDS, SETITEMS) to the value on the
  /// stack, in batches as small as Python's.
  template <class Emit>
  void batches(std::size_t count, Op add, Emit emit) {
    for (std::size_t i = 0; i < count; ++i) {
      if (i % largest_batch == 0) op(Op::mark);
      emit(i);
      if (i + 1 == count || (i + 1) % largest_batch == 0) op(add);
    }
  }

  /// Fetches the value of this memo number; false if it has none: write it, then call store().
  bool fetch(std::uint32_t number);
  /// Stores the value on top of the stack in the memo, if there is one.
  void store(std::uint32_t& number);

 private:
  static constexpr std::size_t largest_batch = 1000;
  void plain_string(std::string_view text);

  bool compact_;
  std::string out_;
  std::uint32_t stored_ = 0;
  StringTable strings_;
  std::vector<std::uint32_t> numbers_;  ///< memo numbers of strings_
  std::unordered_map<std::string_view, std::uint32_t> globals_;
};

}  // namespace reshard::dcp
