#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace reshard {

// Serialises values for messages between ranks and processes, and for files that only the program
// which wrote them reads.
//
// A struct lists its serialised members once, for writing and for reading:
//
//   constexpr auto wire_fields(Place const&) { return std::tuple(&Place::file, &Place::offset); }
//
//   WireWriter writer;
//   writer.put(places);                                  // a std::vector<Place>
//   auto const places = WireReader(bytes, "places").all<std::vector<Place>>();

/// An enum member with its last enumerator, for wire_fields(): larger values are refused.
template <class T, class E>
struct WireEnum {
  E T::*member;
  E last;
};
template <class T, class E>
WireEnum(E T::*, E) -> WireEnum<T, E>;

template <class T>
concept HasWireFields = requires(T const& value) {
  wire_fields(value);
};

class WireWriter {
 public:
  WireWriter& byte(std::uint8_t value);
  /// Eight bytes, little endian.
  WireWriter& word(std::uint64_t value);
  /// LEB128: seven bits a byte, the lowest first.
  WireWriter& number(std::uint64_t value);
  /// Zigzag, then LEB128.
  WireWriter& integer(std::int64_t value);
  /// The bytes without a count.
  WireWriter& raw(std::string_view bytes);
  /// Their number, then the bytes.
  WireWriter& text(std::string_view value) { return number(value.size()).raw(value); }

  template <class T>
  WireWriter& put(T const& value) {
    if constexpr (std::is_same_v<T, bool>)
      byte(value ? 1 : 0);
    else if constexpr (std::is_same_v<T, double>)
      word(bits_of(value));
    else if constexpr (std::is_unsigned_v<T>)
      number(value);
    else if constexpr (std::is_integral_v<T>)
      integer(value);
    else if constexpr (std::is_convertible_v<T const&, std::string_view>)
      text(value);
    else
      put_members(value);
    return *this;
  }

  std::string const& bytes() const& { return bytes_; }
  std::string take() && { return std::move(bytes_); }

 private:
  static std::uint64_t bits_of(double value);

  template <class T>
  void put_members(T const& value) requires HasWireFields<T> {
    std::apply([&](auto const&... field) { (put_field(value, field), ...); }, wire_fields(value));
  }
  template <class T>
  void put_members(std::vector<T> const& values) {
    number(values.size());
    for (T const& value : values) put(value);
  }
  template <class T>
  void put_members(std::optional<T> const& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  template <class A, class B>
  void put_members(std::pair<A, B> const& value) {
    put(value.first).put(value.second);
  }
  template <class T, class M>
  void put_field(T const& value, M T::*member) {
    put(value.*member);
  }
  template <class T, class E>
  void put_field(T const& value, WireEnum<T, E> const& field) {
    number(static_cast<std::uint64_t>(value.*field.member));
  }

  std::string bytes_;
};

/// Reads the bytes of a WireWriter, never past their end. Malformed bytes make good() false from
/// then on; every further value is zero or empty.
class WireReader {
 public:
  /// `what` names the bytes in errors: "the headers of a rank". Both outlive the reader.
  WireReader(std::string_view bytes, std::string_view what) : left_(bytes), what_(what) {}

  std::uint8_t byte();
  std::uint64_t word();
  std::uint64_t number();
  std::int64_t integer();
  std::string_view raw(std::uint64_t bytes);
  std::string_view text() { return raw(number()); }
  /// At most `largest`.
  std::uint64_t number_up_to(std::uint64_t largest);
  /// A count of items that take at least `bytes_each` bytes: a count that cannot fit in the rest of
  /// the bytes is malformed, so that none asks for much memory.
  std::size_t count(std::uint64_t bytes_each = 1);
  /// count() of a number that was written as a word.
  std::size_t word_count(std::uint64_t bytes_each);

  template <class T>
  T get() {
    if constexpr (std::is_same_v<T, bool>) {
      return number_up_to(1) == 1;
    } else if constexpr (std::is_same_v<T, double>) {
      return real();
    } else if constexpr (std::is_unsigned_v<T>) {
      return static_cast<T>(number_up_to(static_cast<T>(-1)));
    } else if constexpr (std::is_integral_v<T>) {
      std::int64_t const value = integer();
      good_ = good_ && std::in_range<T>(value);
      return good_ ? static_cast<T>(value) : T{0};
    } else if constexpr (std::is_convertible_v<T const&, std::string_view>) {
      return T(text());
    } else {
      T value{};
      get_members(value);
      return value;
    }
  }
  /// The only value of the bytes: as get() and finish().
  template <class T>
  T all() {
    T value = get<T>();
    finish();
    return value;
  }

  bool good() const { return good_; }
  bool empty() const { return left_.empty(); }
  std::string_view left() const { return left_; }
  /// Marks the bytes as malformed.
  void spoil() { good_ = false; }
  /// Throws an internal Error unless good().
  void check() const;
  /// Throws an internal Error unless good() and at the end of the bytes.
  void finish() const;

 private:
  double real();
  std::size_t checked_count(std::uint64_t value, std::uint64_t bytes_each);

  template <class T>
  void get_members(T& value) requires HasWireFields<T> {
    std::apply([&](auto const&... field) { (get_field(value, field), ...); }, wire_fields(value));
  }
  template <class T>
  void get_members(std::vector<T>& values) {
    for (std::size_t left = count(); left > 0 && good_; --left) values.push_back(get<T>());
  }
  template <class T>
  void get_members(std::optional<T>& value) {
    if (get<bool>()) value = get<T>();
  }
  template <class A, class B>
  void get_members(std::pair<A, B>& value) {
    value.first = get<A>();
    value.second = get<B>();
  }
  template <class T, class M>
  void get_field(T& value, M T::*member) {
    value.*member = get<M>();
  }
  template <class T, class E>
  void get_field(T& value, WireEnum<T, E> const& field) {
    value.*field.member = static_cast<E>(number_up_to(static_cast<std::uint64_t>(field.last)));
  }

  std::string_view left_;
  std::string_view what_;
  bool good_ = true;
};

}  // namespace reshard
