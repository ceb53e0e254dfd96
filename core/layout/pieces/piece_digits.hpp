#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "core/layout/axis.hpp"

namespace reshard {

/// One digit of an affine piece: the values first, first + 1, … first + count - 1 of (index mod
/// `mod`) div `div` of an axis, `stride` elements of the blob apart. `mod` is never 0: a complete
/// axis has mod = its size (rounded up to a multiple of div) and div = 1.
struct PieceDigit {
  AxisId axis = 0;
  Index mod = 0;
  Index div = 1;
  Index first = 0;
  Index count = 1;
  Index stride = 0;
  friend bool operator==(PieceDigit const&, PieceDigit const&) = default;
};

/// The digits of a piece. The process stores each distinct digit once, until it ends; a piece has
/// their numbers. The files of 8,192 ranks have a million pieces of the same few hundred digits.
class PieceDigits {
 public:
  class Iterator {
   public:
    using iterator_category = std::random_access_iterator_tag;
    using value_type = PieceDigit;
    using difference_type = std::ptrdiff_t;
    using pointer = PieceDigit const*;
    using reference = PieceDigit const&;
    Iterator() = default;
    explicit Iterator(std::uint32_t const* number) : number_(number) {}
    reference operator*() const { return digit(*number_); }
    pointer operator->() const { return &digit(*number_); }
    reference operator[](difference_type n) const { return digit(number_[n]); }
    Iterator& operator+=(difference_type n) { return number_ += n, *this; }
    Iterator& operator-=(difference_type n) { return number_ -= n, *this; }
    Iterator& operator++() { return ++number_, *this; }
    Iterator& operator--() { return --number_, *this; }
    Iterator operator++(int) { return Iterator(number_++); }
    Iterator operator--(int) { return Iterator(number_--); }
    friend Iterator operator+(Iterator at, difference_type n) { return at += n; }
    friend Iterator operator+(difference_type n, Iterator at) { return at += n; }
    friend Iterator operator-(Iterator at, difference_type n) { return at -= n; }
    friend difference_type operator-(Iterator a, Iterator b) { return a.number_ - b.number_; }
    friend auto operator<=>(Iterator const&, Iterator const&) = default;

   private:
    std::uint32_t const* number_ = nullptr;
  };
  using value_type = PieceDigit;
  using iterator = Iterator;
  using const_iterator = Iterator;

  PieceDigits() = default;
  PieceDigits(std::initializer_list<PieceDigit> digits) {
    for (PieceDigit const& digit : digits) push_back(digit);
  }
  PieceDigits(std::vector<PieceDigit> const& digits) {
    for (PieceDigit const& digit : digits) push_back(digit);
  }
  /// The digits with the numbers `first`, then those with the numbers `last` (numbers()).
  PieceDigits(std::span<std::uint32_t const> first, std::span<std::uint32_t const> last);
  PieceDigits(PieceDigits const& other);
  PieceDigits(PieceDigits&& other) noexcept { swap(other); }
  PieceDigits& operator=(PieceDigits other) noexcept {
    swap(other);
    return *this;
  }
  ~PieceDigits() {
    if (count_ > inline_count) delete[] many();
  }

  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  Iterator begin() const { return Iterator(place()); }
  Iterator end() const { return Iterator(place() + count_); }
  PieceDigit const& operator[](std::size_t i) const { return digit(place()[i]); }
  PieceDigit const& front() const { return (*this)[0]; }
  PieceDigit const& back() const { return (*this)[count_ - 1]; }

  /// The numbers of the digits; equal digits have equal numbers.
  std::span<std::uint32_t const> numbers() const { return {place(), count_}; }
  /// The digit with a number.
  static PieceDigit const& digit(std::uint32_t number);

  void push_back(PieceDigit const& digit);
  /// Calls `with` with a copy of digit i, which then replaces the digit.
  template <class With>
  void change(std::size_t i, With const& with) {
    PieceDigit changed = (*this)[i];
    with(changed);
    place()[i] = number_of(changed);
  }
  /// Changes each digit, as above.
  template <class With>
  void change(With const& with) {
    for (std::size_t i = 0; i < count_; ++i) change(i, with);
  }

  friend bool operator==(PieceDigits const& a, PieceDigits const& b) {
    return a.count_ == b.count_ &&
           std::memcmp(a.place(), b.place(), a.count_ * sizeof(std::uint32_t)) == 0;
  }

 private:
  static constexpr std::uint32_t inline_count = 5;

  static std::uint32_t number_of(PieceDigit const& digit);

  std::uint32_t* many() const {
    std::uint32_t* numbers;
    std::memcpy(&numbers, few_, sizeof numbers);
    return numbers;
  }
  std::uint32_t const* place() const { return count_ > inline_count ? many() : few_; }
  std::uint32_t* place() { return count_ > inline_count ? many() : few_; }
  void swap(PieceDigits& other) noexcept {
    std::swap(count_, other.count_);
    std::swap(few_, other.few_);
  }

  std::uint32_t count_ = 0;
  std::uint32_t few_[inline_count] = {};  ///< the numbers, or the place of the numbers if they are
                                          ///< too many
};

}  // namespace reshard
