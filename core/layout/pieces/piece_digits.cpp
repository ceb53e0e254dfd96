#include "core/layout/pieces/piece_digits.hpp"

#include <algorithm>
#include <array>

#include "core/base/hash/mixed_bits.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/tables/interned.hpp"

namespace reshard {
namespace {

struct DigitTraits {
  static std::size_t hash(PieceDigit const& digit) {
    std::uint64_t hash = digit.axis;
    for (Index const value : {digit.mod, digit.div, digit.first, digit.count, digit.stride})
      hash = mixed_bits(hash * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(value));
    return hash;
  }
  static bool same(PieceDigit const& a, PieceDigit const& b) { return a == b; }
};

Interned<PieceDigit, DigitTraits>& all_digits() {
  static auto* const digits = new Interned<PieceDigit, DigitTraits>;
  return *digits;
}

/// The last numbers that a thread requested: neighbours in a checkpoint have the same digits.
struct Asked {
  PieceDigit digit;
  std::uint32_t number = 0;
  bool known = false;
};

}  // namespace

PieceDigits::PieceDigits(std::span<std::uint32_t const> first, std::span<std::uint32_t const> last)
    : count_(narrow<std::uint32_t>(first.size() + last.size())) {
  std::uint32_t* numbers = few_;
  if (count_ > inline_count) {
    numbers = new std::uint32_t[count_];
    std::memcpy(few_, &numbers, sizeof numbers);
  }
  std::ranges::copy(last, std::ranges::copy(first, numbers).out);
}

PieceDigits::PieceDigits(PieceDigits const& other) : count_(other.count_) {
  if (count_ <= inline_count) {
    std::memcpy(few_, other.few_, sizeof few_);
    return;
  }
  auto* const numbers = new std::uint32_t[count_];
  std::memcpy(numbers, other.many(), count_ * sizeof *numbers);
  std::memcpy(few_, &numbers, sizeof numbers);
}

void PieceDigits::push_back(PieceDigit const& digit) {
  std::uint32_t const number = number_of(digit);
  if (count_ < inline_count) {
    few_[count_++] = number;
    return;
  }
  auto* const numbers = new std::uint32_t[count_ + 1];
  std::memcpy(numbers, place(), count_ * sizeof *numbers);
  numbers[count_] = number;
  if (count_ > inline_count) delete[] many();
  std::memcpy(few_, &numbers, sizeof numbers);
  ++count_;
}

PieceDigit const& PieceDigits::digit(std::uint32_t number) { return all_digits().at(number); }

std::uint32_t PieceDigits::number_of(PieceDigit const& digit) {
  thread_local std::array<Asked, 256> asked;
  Asked& last = asked[DigitTraits::hash(digit) % asked.size()];
  if (!last.known || last.digit != digit) last = {digit, all_digits().number_of(digit), true};
  return last.number;
}

}  // namespace reshard
