#include "core/layout/pieces/piece_table.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

#include "core/base/hash/mixed_bits.hpp"
#include "core/base/tables/interned.hpp"

namespace reshard {
namespace {

bool is_of_frame(PieceDigit const& digit) { return digit.count == 1 && digit.stride == 0; }

/// The content of a frame or a form; a frame has no copies.
struct PartKey {
  std::span<std::uint32_t const> digits;  ///< PieceDigits::numbers()
  std::span<PieceCopy const> copies;
};

/// A frame or a form.
struct PiecePart {
  explicit PiecePart(PartKey const& key)
      : digits(key.digits, {}),
        copies(key.copies.begin(), key.copies.end()),
        hash(elements_hash(digits)) {}
  PartKey key() const { return {digits.numbers(), copies}; }

  PieceDigits digits;
  std::vector<PieceCopy> copies;
  std::uint64_t hash;
};

struct PartTraits {
  static std::size_t hash(PartKey const& key) {
    std::uint64_t hash = key.copies.size();
    for (std::uint32_t const digit : key.digits) hash = mixed_bits(hash * factor + digit);
    for (PieceCopy const& copy : key.copies)
      for (Index const value : {copy.count, copy.stride})
        hash = mixed_bits(hash * factor + static_cast<std::uint64_t>(value));
    return hash;
  }
  static std::size_t hash(PiecePart const& part) { return hash(part.key()); }
  static bool same(PiecePart const& part, PartKey const& key) {
    return std::ranges::equal(part.digits.numbers(), key.digits) &&
           std::ranges::equal(part.copies, key.copies);
  }

 private:
  static constexpr std::uint64_t factor = 0x9e3779b97f4a7c15U;
};

using PartTable = Interned<PiecePart, PartTraits>;

PartTable& frames() {
  static auto* const table = new PartTable;
  return *table;
}

PartTable& forms() {
  static auto* const table = new PartTable;
  return *table;
}

/// The parts that a thread last requested of a table, by hash: neighbours in a checkpoint have the
/// same ones.
class AskedParts {
 public:
  std::uint32_t number_of(PartTable& table, PartKey const& key) {
    if (asked_.empty()) asked_.resize(most);
    Asked& last = asked_[PartTraits::hash(key) % asked_.size()];
    if (last.part == nullptr || !PartTraits::same(*last.part, key)) {
      last.number = table.number_of(key);
      last.part = &table.at(last.number);
    }
    return last.number;
  }

 private:
  struct Asked {
    PiecePart const* part = nullptr;
    std::uint32_t number = 0;
  };
  static constexpr std::size_t most = 1U << 12;
  std::vector<Asked> asked_;
};

/// The numbers of a piece's digits that are of the frame, or of those that are not.
std::span<std::uint32_t const> numbers_of(Piece const& piece, bool frame) {
  thread_local std::vector<std::uint32_t> chosen;
  chosen.clear();
  for (std::uint32_t const number : piece.digits.numbers())
    if (is_of_frame(PieceDigits::digit(number)) == frame) chosen.push_back(number);
  return chosen;
}

bool is_before(std::uint32_t a, std::uint32_t b) {
  PieceDigit const& x = PieceDigits::digit(a);
  PieceDigit const& y = PieceDigits::digit(b);
  return std::tie(x.axis, y.div, x.mod, x.first) < std::tie(y.axis, x.div, y.mod, y.first);
}

}  // namespace

std::uint32_t frame_of(Piece const& piece) {
  thread_local AskedParts asked;
  thread_local std::vector<std::uint32_t> sorted;
  auto const numbers = numbers_of(piece, true);
  sorted.assign(numbers.begin(), numbers.end());
  std::ranges::sort(sorted, is_before);
  return asked.number_of(frames(), {sorted, {}});
}

std::uint32_t form_of(Piece const& piece) {
  thread_local AskedParts asked;
  return asked.number_of(forms(), {numbers_of(piece, false), piece.copies});
}

PieceDigits const& frame_digits(std::uint32_t frame) { return frames().at(frame).digits; }
PieceDigits const& form_digits(std::uint32_t form) { return forms().at(form).digits; }
std::span<PieceCopy const> form_copies(std::uint32_t form) { return forms().at(form).copies; }
std::uint64_t frame_hash(std::uint32_t frame) { return frames().at(frame).hash; }
std::uint64_t form_hash(std::uint32_t form) { return forms().at(form).hash; }

InternedPiece interned(Piece const& piece) {
  return {piece.tensor, frame_of(piece), form_of(piece), piece.offset};
}

Piece piece_of(TensorId tensor, std::uint32_t frame, std::uint32_t form, Index offset) {
  PiecePart const& part = forms().at(form);
  return {tensor, PieceDigits(part.digits.numbers(), frames().at(frame).digits.numbers()),
          part.copies, offset};
}

// A collision cannot go unnoticed: one of the two lists of elements would be missing from the
// tiling, and the proof would refuse the checkpoint.
std::uint64_t elements_hash(PieceDigits const& digits) {
  std::uint64_t hash = 0;
  for (PieceDigit const& digit : digits) {
    std::uint64_t part = mixed_bits(digit.axis + 1U);
    for (Index const value : {digit.mod, digit.div, digit.first, digit.count})
      part = mixed_bits(part + 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(value));
    hash += part;
  }
  return hash;
}

}  // namespace reshard
