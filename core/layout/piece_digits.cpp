#include "core/layout/piece_digits.hpp"

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "core/base/error.hpp"
#include "core/base/mixed_bits.hpp"

namespace reshard {
namespace {

struct DigitHash {
  std::size_t operator()(PieceDigit const& digit) const {
    std::uint64_t hash = digit.axis;
    for (Index const value : {digit.mod, digit.div, digit.first, digit.count, digit.stride})
      hash = mixed_bits(hash * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(value));
    return hash;
  }
};

/// All digits of the process, by number. A digit is in place before anybody has its number, so
/// reading takes no lock.
class DigitPool {
 public:
  static DigitPool& of_process() {
    static auto* const pool = new DigitPool;
    return *pool;
  }

  PieceDigit const& at(std::uint32_t number) const {
    std::uint32_t const block = number / block_size;
    return blocks_[block].load(std::memory_order_acquire)[number % block_size];
  }

  std::uint32_t number_of(PieceDigit const& digit) {
    std::lock_guard const lock(mutex_);
    auto const [at, is_new] = numbers_.try_emplace(digit, count_);
    if (!is_new) return at->second;
    std::uint32_t const block = count_ / block_size;
    RESHARD_EXPECT(block < blocks_.size());
    if (count_ % block_size == 0)
      blocks_[block].store(new PieceDigit[block_size], std::memory_order_release);
    blocks_[block].load(std::memory_order_relaxed)[count_ % block_size] = digit;
    return count_++;
  }

 private:
  static constexpr std::uint32_t block_size = 1U << 13;
  std::mutex mutex_;
  std::unordered_map<PieceDigit, std::uint32_t, DigitHash> numbers_;
  std::array<std::atomic<PieceDigit*>, 1U << 15> blocks_{};
  std::uint32_t count_ = 0;
};

/// The numbers that a thread asked for last: neighbours in a checkpoint have the same digits.
struct Asked {
  PieceDigit digit;
  std::uint32_t number = 0;
  bool known = false;
};

}  // namespace

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
  std::memcpy(numbers, this->numbers(), count_ * sizeof *numbers);
  numbers[count_] = number;
  if (count_ > inline_count) delete[] many();
  std::memcpy(few_, &numbers, sizeof numbers);
  ++count_;
}

PieceDigit const& PieceDigits::digit(std::uint32_t number) {
  return DigitPool::of_process().at(number);
}

std::uint32_t PieceDigits::number_of(PieceDigit const& digit) {
  thread_local std::array<Asked, 256> asked;
  Asked& last = asked[DigitHash()(digit) % asked.size()];
  if (!last.known || last.digit != digit)
    last = {digit, DigitPool::of_process().number_of(digit), true};
  return last.number;
}

}  // namespace reshard
