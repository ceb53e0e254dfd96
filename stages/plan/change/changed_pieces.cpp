#include "stages/plan/change/changed_pieces.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.hpp"

namespace reshard {
namespace {

bool has_axis(LogicalTensor const& tensor, AxisId axis) {
  return std::ranges::any_of(tensor.axes, [&](LogicalAxis const& one) { return one.axis == axis; });
}

class PieceChanger {
 public:
  PieceChanger(Model const& model, Catalog& catalog) : model_(model), catalog_(catalog) {}

  /// Replaces every piece of tensors with the axis by what `make` gives for it.
  template <class Make>
  void change(AxisId axis, Make const& make) {
    for (std::size_t t = 0; t < catalog_.tensors.size(); ++t) {
      LogicalTensor const& tensor = model_.tensors()[t];
      if (!has_axis(tensor, axis) || catalog_.tensors[t].empty()) continue;
      TensorPieces const old = std::exchange(catalog_.tensors[t], {});
      catalog_.tensors[t].set_tensor(TensorId(t));
      for (std::size_t i = 0; i < old.size(); ++i)
        for (Piece const& piece : make(tensor, old[i]))
          catalog_.tensors[t].add(piece, old.blob(i), old.is_copy(i));
    }
  }

  /// The place of the one digit that counts the axis; nothing where the piece has none.
  std::optional<std::size_t> digit_of(LogicalTensor const& tensor, Piece const& piece,
                                      AxisId axis) const {
    std::optional<std::size_t> found;
    for (std::size_t d = 0; d < piece.digits.size(); ++d) {
      PieceDigit const& digit = piece.digits[d];
      if (digit.axis != axis) continue;
      if (found || digit.div != 1 || digit.mod < model_.axes()[axis].size)
        fail(ErrorKind::usage,
             "'{}': its indices of '{}' are stored in parts, and a selection of them is not made "
             "here. Remove the key of [target] that selects them.",
             tensor.name, model_.axes()[axis].name);
      found = d;
    }
    return found;
  }

  std::vector<Piece> selected(LogicalTensor const& tensor, Piece const& piece, AxisId axis,
                              std::vector<Index> const& kept, Index size) const {
    auto const at = digit_of(tensor, piece, axis);
    if (!at)
      return kept.empty() ? std::vector<Piece>() : std::vector{piece};  // an axis of one index
    PieceDigit const digit = piece.digits[*at];
    auto const begin = std::ranges::lower_bound(kept, digit.first);
    auto const end = std::ranges::lower_bound(kept, digit.first + digit.count);
    std::vector<Piece> result;
    for (auto i = begin; i != end;) {
      auto last = i;
      while (last + 1 != end && *(last + 1) == *last + 1) ++last;
      Piece& part = result.emplace_back(piece);
      part.digits.change(*at, [&](PieceDigit& one) {
        one.mod = size;
        one.first = static_cast<Index>(i - kept.begin());
        one.count = static_cast<Index>(last - i) + 1;
      });
      part.offset += (*i - digit.first) * digit.stride;
      i = last + 1;
    }
    return result;
  }

  Model const& model() const { return model_; }

 private:
  Model const& model_;
  Catalog& catalog_;
};

}  // namespace

void select_indices(Model const& model, Catalog& catalog, AxisId axis,
                    std::vector<Index> const& kept) {
  PieceChanger changer(model, catalog);
  changer.change(axis, [&](LogicalTensor const& tensor, Piece const& piece) {
    return changer.selected(tensor, piece, axis, kept, static_cast<Index>(kept.size()));
  });
}

void select_indices_by(Model const& model, Catalog& catalog, AxisId by, AxisId of,
                       std::vector<std::vector<Index>> const& kept, Index count) {
  PieceChanger changer(model, catalog);
  changer.change(of, [&](LogicalTensor const& tensor, Piece const& piece) {
    auto const at = changer.digit_of(tensor, piece, by);
    if (!at)  // of an axis of one index
      return changer.selected(tensor, piece, of, kept.front(), count);
    PieceDigit const digit = piece.digits[*at];
    std::vector<Piece> result;
    for (Index i = 0; i < digit.count; ++i) {
      Piece one = piece;
      one.digits.change(*at, [&](PieceDigit& its) {
        its.first = digit.first + i;
        its.count = 1;
      });
      one.offset += i * digit.stride;
      for (Piece& part : changer.selected(tensor, one, of,
                                          kept[static_cast<std::size_t>(digit.first + i)], count))
        result.push_back(std::move(part));
    }
    return result;
  });
}

void select_from(Model const& model, Catalog& catalog, AxisId axis, Index first) {
  PieceChanger changer(model, catalog);
  changer.change(axis, [&](LogicalTensor const& tensor, Piece piece) {
    auto const at = changer.digit_of(tensor, piece, axis);
    if (!at) return std::vector{std::move(piece)};
    PieceDigit const digit = piece.digits[*at];
    Index const cut = std::clamp<Index>(first - digit.first, 0, digit.count);
    if (cut == digit.count) return std::vector<Piece>();
    piece.digits.change(*at, [&](PieceDigit& its) {
      its.first = digit.first + cut;
      its.count = digit.count - cut;
    });
    piece.offset += cut * digit.stride;
    return std::vector{std::move(piece)};
  });
}

void widen(Model const& model, Catalog& catalog, AxisId axis, Index size) {
  PieceChanger changer(model, catalog);
  changer.change(axis, [&](LogicalTensor const& tensor, Piece piece) {
    if (auto const at = changer.digit_of(tensor, piece, axis))
      piece.digits.change(*at, [&](PieceDigit& digit) { digit.mod = size; });
    return std::vector{std::move(piece)};
  });
}

}  // namespace reshard
