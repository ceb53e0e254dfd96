#include "core/plan/tensor_slices.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core/base/integers.hpp"
#include "core/layout/piece_table.hpp"

namespace reshard {
namespace {

using Key = std::uint64_t;

/// Keys stay below it.
constexpr Key most_keys = Key{1} << 40;

/// What the pieces of one side have of an axis.
enum class AxisForm {
  one_index,  ///< every piece one index, in its frame
  run,        ///< every piece a run of indices, in one digit of its form
  other
};

/// The pieces of one side of a tensor.
class SidePieces {
 public:
  SidePieces(TensorPieces const& pieces, std::span<std::uint32_t const> chosen) {
    std::optional<std::uint32_t> last_frame;  // neighbours are often alike
    std::optional<std::uint32_t> last_form;
    for (std::uint32_t const piece : chosen) {
      if (last_frame != pieces.frame(piece)) frames_.insert(*(last_frame = pieces.frame(piece)));
      if (last_form != pieces.form(piece)) forms_.insert(*(last_form = pieces.form(piece)));
    }
  }

  AxisForm form_of_axis(AxisId axis, Index size) const {
    if (frames_.empty()) return AxisForm::run;  // nothing is in the way
    auto const lacks = [axis](PieceDigits const& digits) {
      return std::ranges::none_of(digits, [&](auto const& digit) { return digit.axis == axis; });
    };
    bool const in_frames = std::ranges::all_of(frames_, [&](std::uint32_t frame) {
      return is_one_index(frame_digits(frame), axis, size);
    });
    if (in_frames)
      return std::ranges::all_of(forms_, [&](auto form) { return lacks(form_digits(form)); })
                 ? AxisForm::one_index
                 : AxisForm::other;
    bool const in_forms =
        std::ranges::all_of(frames_, [&](auto frame) { return lacks(frame_digits(frame)); }) &&
        std::ranges::all_of(forms_,
                            [&](auto form) { return is_one_run(form_digits(form), axis, size); });
    return in_forms ? AxisForm::run : AxisForm::other;
  }

  static bool is_one_run(PieceDigits const& digits, AxisId axis, Index size) {
    std::size_t count = 0;
    for (PieceDigit const& digit : digits) {
      if (digit.axis != axis) continue;
      bool const is_inside = digit.first >= 0 && digit.first + digit.count <= size;
      if (++count > 1 || digit.mod < size || digit.div != 1 || !is_inside) return false;
    }
    return count == 1;
  }

 private:
  /// Digits of one value that make up the whole axis. Frames have coarse digits first.
  static bool is_one_index(PieceDigits const& digits, AxisId axis, Index size) {
    Index rest = 0;
    Index value = 0;
    for (PieceDigit const& digit : digits) {
      if (digit.axis != axis) continue;
      if (rest == 0 ? digit.mod < size : digit.mod != rest) return false;
      rest = digit.div;
      value += digit.first * digit.div;
    }
    return rest == 1 && value >= 0 && value < size;
  }

  std::unordered_set<std::uint32_t> frames_;
  std::unordered_set<std::uint32_t> forms_;
};

SliceAxis const* find(std::span<SliceAxis const> axes, AxisId axis) {
  auto const at = std::ranges::find(axes, axis, &SliceAxis::axis);
  return at == axes.end() ? nullptr : &*at;
}

/// The axes that are one index on one side, and one index or a run on the other.
std::vector<SliceAxis> slice_axes(AxisTable const& axes, std::span<DomainAxis const> domain,
                                  SidePieces const& source, SidePieces const& target,
                                  std::span<Piece const> blocks) {
  std::vector<SliceAxis> found;
  Key keys = 1;
  for (DomainAxis const& along : domain) {
    Index const size = axes[along.axis].size;
    AxisForm const from = source.form_of_axis(along.axis, size);
    AxisForm const to = target.form_of_axis(along.axis, size);
    bool const is_named = from == AxisForm::one_index || to == AxisForm::one_index;
    if (!is_named || from == AxisForm::other || to == AxisForm::other) continue;
    if (along.div != 1 || size < 1 || static_cast<Key>(size) > most_keys / keys) continue;
    if (!std::ranges::all_of(blocks, [&](Piece const& block) {
          return SidePieces::is_one_run(block.digits, along.axis, size);
        }))
      continue;
    found.push_back({along.axis, keys, static_cast<Key>(size)});
    keys *= static_cast<Key>(size);
  }
  return found;
}

/// Cuts the pieces of one side.
class Cutter {
 public:
  Cutter(TensorPieces const& pieces, std::span<SliceAxis const> axes)
      : pieces_(pieces), axes_(axes) {}

  void add(std::uint32_t piece) {
    Frame const& frame = frame_of_number(pieces_.frame(piece));
    Form const& form = form_of_number(pieces_.form(piece));
    spread(form.runs, frame.key, {piece, frame.rest, form.rest, pieces_.offset(piece)});
  }

  void reserve(std::size_t count) {
    keys_.reserve(count);
    cut_.reserve(count);
  }

  /// By key; those of one key in the order in which they were added.
  void sort() {
    if (std::ranges::is_sorted(keys_)) return;
    Key greatest = 0;
    for (Key const key : keys_) greatest = std::max(greatest, key);
    if (greatest < 4 * keys_.size() + 1024)
      count_sort(greatest);
    else
      compare_sort();
  }

  std::vector<Key> const& keys() const { return keys_; }
  std::vector<SlicePiece> take() { return std::move(cut_); }

 private:
  struct Frame {
    Key key = 0;
    std::uint32_t rest = 0;
  };
  struct Run {
    Key unit = 1;
    PieceDigit digit;
  };
  struct Form {
    std::vector<Run> runs;
    std::uint32_t rest = 0;
  };

  Frame const& frame_of_number(std::uint32_t number) {
    auto const [at, is_new] = frames_.try_emplace(number);
    if (!is_new) return at->second;
    Piece rest;
    for (PieceDigit const& digit : frame_digits(number))
      if (SliceAxis const* axis = find(axes_, digit.axis))
        at->second.key += axis->unit * static_cast<Key>(digit.first * digit.div);
      else
        rest.digits.push_back(digit);
    at->second.rest = frame_of(rest);
    return at->second;
  }

  Form const& form_of_number(std::uint32_t number) {
    auto const [at, is_new] = forms_.try_emplace(number);
    if (!is_new) return at->second;
    Piece rest;
    for (PieceDigit const& digit : form_digits(number))
      if (SliceAxis const* axis = find(axes_, digit.axis))
        at->second.runs.push_back({axis->unit, digit});
      else
        rest.digits.push_back(digit);
    auto const copies = form_copies(number);
    rest.copies.assign(copies.begin(), copies.end());
    at->second.rest = form_of(rest);
    return at->second;
  }

  void spread(std::span<Run const> runs, Key key, SlicePiece part) {
    if (runs.empty()) {
      keys_.push_back(key);
      cut_.push_back(part);
      return;
    }
    PieceDigit const& digit = runs.front().digit;
    for (Index i = 0; i < digit.count; ++i) {
      spread(runs.subspan(1), key + runs.front().unit * static_cast<Key>(digit.first + i), part);
      part.offset += digit.stride;
    }
  }

  void count_sort(Key greatest) {
    std::vector<std::uint32_t> next(greatest + 2, 0);
    for (Key const key : keys_) ++next[key + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::vector<SlicePiece> sorted(cut_.size());
    for (std::size_t i = 0; i < cut_.size(); ++i) sorted[next[keys_[i]]++] = cut_[i];
    std::size_t at = 0;
    for (Key key = 0; key <= greatest; ++key)
      for (; at < next[key]; ++at) keys_[at] = key;
    cut_ = std::move(sorted);
  }

  void compare_sort() {
    std::vector<std::uint32_t> order(cut_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::sort(order, [this](std::uint32_t a, std::uint32_t b) {
      return std::tie(keys_[a], a) < std::tie(keys_[b], b);
    });
    std::vector<SlicePiece> sorted;
    sorted.reserve(cut_.size());
    for (std::uint32_t const i : order) sorted.push_back(cut_[i]);
    cut_ = std::move(sorted);
    std::ranges::sort(keys_);
  }

  TensorPieces const& pieces_;
  std::span<SliceAxis const> axes_;
  std::unordered_map<std::uint32_t, Frame> frames_;
  std::unordered_map<std::uint32_t, Form> forms_;
  std::vector<Key> keys_;
  std::vector<SlicePiece> cut_;
};

std::vector<std::uint32_t> all_of(TensorPieces const& pieces) {
  std::vector<std::uint32_t> numbers(pieces.size());
  std::iota(numbers.begin(), numbers.end(), 0U);
  return numbers;
}

}  // namespace

Piece SlicePiece::inner(TensorId tensor) const { return piece_of(tensor, frame, form, 0); }

TensorSlices::TensorSlices(AxisTable const& axes, std::span<DomainAxis const> domain,
                           TensorPieces const& source, std::span<std::uint32_t const> chosen,
                           TensorPieces const& target, Catalog const& target_catalog,
                           std::span<Piece const> blocks) {
  std::vector<std::uint32_t> const targets = all_of(target);
  axes_ = slice_axes(axes, domain, SidePieces(source, chosen), SidePieces(target, targets), blocks);
  Cutter from(source, axes_);
  Cutter to(target, axes_);
  from.reserve(chosen.size());
  to.reserve(targets.size());
  for (std::uint32_t const piece : chosen) from.add(piece);
  for (std::uint32_t const piece : targets) to.add(piece);
  from.sort();
  to.sort();
  source_ = from.take();
  target_ = to.take();
  std::size_t s = 0;
  std::size_t t = 0;
  while (s < source_.size() || t < target_.size()) {
    Key key = s < source_.size() ? from.keys()[s] : to.keys()[t];
    if (t < target_.size()) key = std::min(key, to.keys()[t]);
    Range range{key, s, s, t, t};
    while (s < source_.size() && from.keys()[s] == key) range.source_end = ++s;
    while (t < target_.size() && to.keys()[t] == key) range.target_end = ++t;
    slices_.push_back(range);
  }
  auto const place = [&](SlicePiece const& piece) {
    Blob const& blob = target_catalog.blobs[target.blob(piece.piece)];
    return std::tuple(blob.file, blob.offset_bytes, piece.offset);
  };
  for (Range const& range : slices_) {
    auto const pieces =
        std::span(target_).subspan(range.target_begin, range.target_end - range.target_begin);
    if (!std::ranges::is_sorted(pieces, {}, place)) std::ranges::stable_sort(pieces, {}, place);
  }
}

Slice TensorSlices::operator[](std::size_t number) const {
  Range const& range = slices_[number];
  return {range.key,
          std::span(source_).subspan(range.source_begin, range.source_end - range.source_begin),
          std::span(target_).subspan(range.target_begin, range.target_end - range.target_begin)};
}

bool TensorSlices::is_cut(AxisId axis) const { return find(axes_, axis) != nullptr; }

std::optional<Piece> TensorSlices::part_of(Piece const& block, Key key) const {
  Piece part{block.tensor, {}, block.copies, block.offset};
  for (PieceDigit const& digit : block.digits) {
    SliceAxis const* const axis = find(axes_, digit.axis);
    if (axis == nullptr) {
      part.digits.push_back(digit);
      continue;
    }
    auto const value = static_cast<Index>(key / axis->unit % axis->size);
    if (value < digit.first || value >= digit.first + digit.count) return std::nullopt;
    part.offset += (value - digit.first) * digit.stride;
  }
  return part;
}

bool TensorSlices::source_has_all(std::span<DomainAxis const> domain) const {
  std::size_t wanted = 1;
  for (DomainAxis const& axis : domain) {
    if (!is_cut(axis.axis)) continue;
    std::size_t indices = 0;
    for (Run const& run : axis.runs) indices += static_cast<std::size_t>(run.end - run.begin);
    wanted *= indices;
  }
  std::size_t found = 0;
  for (Range const& range : slices_) {
    if (range.source_begin == range.source_end) continue;
    ++found;
    for (DomainAxis const& along : domain) {
      SliceAxis const* const axis = find(axes_, along.axis);
      if (axis == nullptr) continue;
      auto const value = static_cast<Index>(range.key / axis->unit % axis->size);
      if (std::ranges::none_of(
              along.runs, [&](Run const& run) { return run.begin <= value && value < run.end; }))
        return false;
    }
  }
  return found == wanted;
}

}  // namespace reshard
