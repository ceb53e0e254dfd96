#include "core/plan/equal/tensor_slices.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "core/base/tables/integers.hpp"
#include "core/layout/pieces/piece_table.hpp"

namespace reshard {
namespace {

using Key = std::uint64_t;

/// Keys stay below it.
constexpr Key most_keys = Key{1} << 32;

bool lacks(PieceDigits const& digits, AxisId axis) {
  return std::ranges::none_of(digits, [&](auto const& digit) { return digit.axis == axis; });
}

/// Whether the axis is one digit of its full size.
bool is_one_run(PieceDigits const& digits, AxisId axis, Index size) {
  std::size_t count = 0;
  for (PieceDigit const& digit : digits) {
    if (digit.axis != axis) continue;
    bool const is_inside = digit.first >= 0 && digit.first + digit.count <= size;
    if (++count > 1 || digit.mod < size || digit.div != 1 || !is_inside) return false;
  }
  return count == 1;
}

/// Whether digits of one value make up the complete axis. Frames have coarse digits first.
bool is_one_index(PieceDigits const& digits, AxisId axis, Index size) {
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

SliceAxis const* find(std::span<SliceAxis const> axes, AxisId axis) {
  auto const at = std::ranges::find(axes, axis, &SliceAxis::axis);
  return at == axes.end() ? nullptr : &*at;
}

/// The axes that are one index on one side, and one index or a run on the other.
std::vector<SliceAxis> slice_axes(AxisTable const& axes, std::span<DomainAxis const> domain,
                                  SidePieces const& source, SidePieces const& target,
                                  std::span<Piece const> blocks, std::size_t pieces) {
  // A complete tensor has a piece for each slice on at least one side: an axis with far more
  // indices is that of a damaged checkpoint, or not worth cutting.
  Key const most = std::min(most_keys, 16 * Key{pieces} + 1024);
  std::vector<SliceAxis> found;
  Key keys = 1;
  for (DomainAxis const& along : domain) {
    Index const size = axes[along.axis].size;
    AxisForm const from = source.form_of(along.axis, size);
    AxisForm const to = target.form_of(along.axis, size);
    bool const is_named = from == AxisForm::one_index || to == AxisForm::one_index;
    if (!is_named || from == AxisForm::other || to == AxisForm::other) continue;
    if (along.div != 1 || size < 1 || static_cast<Key>(size) > most / keys) continue;
    if (!std::ranges::all_of(
            blocks, [&](Piece const& block) { return is_one_run(block.digits, along.axis, size); }))
      continue;
    found.push_back({along.axis, keys, static_cast<Key>(size)});
    keys *= static_cast<Key>(size);
  }
  return found;
}

std::vector<std::uint32_t> all_of(TensorPieces const& pieces) {
  std::vector<std::uint32_t> numbers(pieces.size());
  std::iota(numbers.begin(), numbers.end(), 0U);
  return numbers;
}

}  // namespace

Piece SlicePiece::inner(TensorId tensor) const { return piece_of(tensor, frame, form, 0); }

SidePieces::SidePieces(TensorPieces const& pieces, std::span<std::uint32_t const> chosen)
    : pieces_(pieces) {
  for (std::uint32_t const piece : chosen) {
    frames_.add(pieces.frame(piece));
    forms_.add(pieces.form(piece));
  }
}

AxisForm SidePieces::form_of(AxisId axis, Index size) const {
  auto const frames = [&](auto const& has) {
    return std::ranges::all_of(frames_.entries(),
                               [&](auto const& one) { return has(frame_digits(one.number)); });
  };
  auto const forms = [&](auto const& has) {
    return std::ranges::all_of(forms_.entries(),
                               [&](auto const& one) { return has(form_digits(one.number)); });
  };
  auto const no_digit = [&](PieceDigits const& digits) { return lacks(digits, axis); };
  auto const one_index = [&](auto const& digits) { return is_one_index(digits, axis, size); };
  auto const one_run = [&](auto const& digits) { return is_one_run(digits, axis, size); };
  if (frames_.entries().empty()) return AxisForm::run;  // no frame prevents it
  if (forms(no_digit)) return frames(one_index) ? AxisForm::one_index : AxisForm::other;
  return frames(no_digit) && forms(one_run) ? AxisForm::run : AxisForm::other;
}

void SidePieces::cut(std::span<SliceAxis const> axes, std::span<std::uint32_t const> chosen) {
  for (auto& [number, frame] : frames_.entries()) {
    Piece rest;
    for (PieceDigit const& digit : frame_digits(number))
      if (SliceAxis const* axis = find(axes, digit.axis))
        frame.key += axis->unit * static_cast<Key>(digit.first * digit.div);
      else
        rest.digits.push_back(digit);
    frame.rest = frame_of(rest);
  }
  for (auto& [number, form] : forms_.entries()) {
    Piece rest;
    for (PieceDigit const& digit : form_digits(number))
      if (SliceAxis const* axis = find(axes, digit.axis))
        form.runs.push_back({*axis, digit});
      else
        rest.digits.push_back(digit);
    auto const copies = form_copies(number);
    rest.copies.assign(copies.begin(), copies.end());
    form.rest = reshard::form_of(rest);
  }
  entries_.reserve(chosen.size());
  for (std::uint32_t const piece : chosen)
    spread(forms_[pieces_.form(piece)].runs, frames_[pieces_.frame(piece)].key, piece);
  sort();
}

void SidePieces::spread(std::span<KeyRun const> runs, Key key, std::uint32_t piece) {
  if (runs.empty()) {
    entries_.push_back({static_cast<std::uint32_t>(key), piece});
    return;
  }
  auto const& [axis, digit] = runs.front();
  for (Index i = digit.first; i < digit.first + digit.count; ++i)
    spread(runs.subspan(1), key + axis.unit * static_cast<Key>(i), piece);
}

void SidePieces::sort() {
  if (std::ranges::is_sorted(entries_, {}, &Entry::key)) return;
  Key const greatest = std::ranges::max(entries_, {}, &Entry::key).key;
  if (greatest > 4 * entries_.size() + 1024) {
    std::ranges::stable_sort(entries_, {}, &Entry::key);
    return;
  }
  std::vector<std::uint32_t> next(greatest + 2, 0);
  for (Entry const& entry : entries_) ++next[entry.key + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<Entry> sorted(entries_.size());
  for (Entry const& entry : entries_) sorted[next[entry.key]++] = entry;
  entries_ = std::move(sorted);
}

SlicePiece SidePieces::piece(Entry const& entry) const {
  Form const& form = forms_[pieces_.form(entry.piece)];
  SlicePiece part{entry.piece, frames_[pieces_.frame(entry.piece)].rest, form.rest,
                  pieces_.offset(entry.piece)};
  for (KeyRun const& run : form.runs) {
    auto const value = static_cast<Index>(entry.key / run.axis.unit % run.axis.size);
    part.offset += (value - run.digit.first) * run.digit.stride;
  }
  return part;
}

TensorSlices::TensorSlices(AxisTable const& axes, std::span<DomainAxis const> domain,
                           TensorPieces const& source, std::span<std::uint32_t const> chosen,
                           TensorPieces const& target, Catalog const& target_catalog,
                           std::span<Piece const> blocks)
    : target_pieces_(target),
      target_catalog_(target_catalog),
      source_(source, chosen),
      target_(target, all_of(target)) {
  axes_ = slice_axes(axes, domain, source_, target_, blocks, chosen.size() + target.size());
  source_.cut(axes_, chosen);
  target_.cut(axes_, all_of(target));
  auto const& from = source_.entries();
  auto const& to = target_.entries();
  std::uint32_t s = 0;
  std::uint32_t t = 0;
  while (s < from.size() || t < to.size()) {
    std::uint32_t key = s < from.size() ? from[s].key : to[t].key;
    if (t < to.size()) key = std::min(key, to[t].key);
    Range range{key, s, s, t, t};
    while (s < from.size() && from[s].key == key) range.source_end = ++s;
    while (t < to.size() && to[t].key == key) range.target_end = ++t;
    slices_.push_back(range);
  }
}

void TensorSlices::make(std::size_t number, Slice& slice) const {
  Range const& range = slices_[number];
  slice.key = range.key;
  slice.source.clear();
  slice.target.clear();
  for (std::uint32_t s = range.source_begin; s < range.source_end; ++s)
    slice.source.push_back(source_.piece(source_.entries()[s]));
  for (std::uint32_t t = range.target_begin; t < range.target_end; ++t)
    slice.target.push_back(target_.piece(target_.entries()[t]));
  auto const place = [&](SlicePiece const& piece) {
    FilePlace const blob = target_catalog_.blobs.place(target_pieces_.blob(piece.piece));
    return std::tuple(blob.file, blob.offset_bytes, piece.offset);
  };
  if (!std::ranges::is_sorted(slice.target, {}, place))
    std::ranges::stable_sort(slice.target, {}, place);
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
