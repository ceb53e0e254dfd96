#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/layout/pieces/join.hpp"
#include "core/layout/pieces/piece.hpp"

namespace reshard::test {

/// What merge() makes in place of what was there.
inline std::vector<CopyDim> merged(std::span<OverlapDigit const> digits) {
  std::vector<CopyDim> dims{{7, 7, 7}};
  merge(digits, dims);
  return dims;
}

/// A model for tests: axes with sizes, named sizes, and a number for every tensor name that comes
/// up.
struct Model {
  Model(std::initializer_list<std::pair<char const*, Index>> sizes) {
    for (auto const& [name, size] : sizes) axes.add(name, size);
  }

  AxisId axis(std::string_view name) const {
    int const found = axes.find(name);
    EXPECT_GE(found, 0) << name;
    return static_cast<AxisId>(found);
  }

  TensorId tensor(std::string_view name) {
    auto const found = std::ranges::find(tensors, name);
    auto const id = TensorId(found - tensors.begin());
    if (found == tensors.end()) tensors.emplace_back(name);
    return id;
  }

  LayoutScope scope() {
    auto const size = [this](std::string_view name) -> std::optional<Index> {
      auto const found = named_sizes.find(std::string(name));
      return found == named_sizes.end() ? std::nullopt : std::optional(found->second);
    };
    return {&axes, [this](std::string_view name) { return tensor(name); }, size};
  }

  Layout layout(std::string_view text, Shares const& shares = {},
                std::vector<Index> const& strides = {}) {
    return evaluate(parse_layout(text), scope(), shares, strides);
  }

  /// The pieces of one tensor.
  std::vector<Piece> pieces(std::string_view text, std::string_view name,
                            Shares const& shares = {}) {
    std::vector<Piece> result;
    for (Piece& piece : layout(text, shares).pieces)
      if (piece.tensor == tensor(name)) result.push_back(std::move(piece));
    return result;
  }

  AxisTable axes;
  std::map<std::string, Index> named_sizes;
  std::vector<std::string> tensors;
};

/// "inter%2" with "first+count*stride", as the specification writes digits.
inline std::string shown(Model const& model, PieceDigit const& digit) {
  Axis const& axis = model.axes[digit.axis];
  return fmt::format(
      "{}{}{} {}+{}*{}", axis.name, digit.mod < axis.size ? fmt::format("%{}", digit.mod) : "",
      digit.div > 1 ? fmt::format("/{}", digit.div) : "", digit.first, digit.count, digit.stride);
}

/// "q @30 group 0+2*60, head 0+2*15 copies (3,5)"
inline std::string shown(Model const& model, Piece const& piece) {
  std::string text = fmt::format("{} @{}", model.tensors[index(piece.tensor)], piece.offset);
  for (std::size_t i = 0; i < piece.digits.size(); ++i)
    text += (i == 0 ? " " : ", ") + shown(model, piece.digits[i]);
  if (!piece.copies.empty()) text += " copies ";
  for (PieceCopy const& copy : piece.copies)
    text += fmt::format("({},{})", copy.count, copy.stride);
  return text;
}

/// Pieces, then fills, a line each.
inline std::vector<std::string> shown(Model const& model, Layout const& layout) {
  std::vector<std::string> lines;
  for (Piece const& piece : layout.pieces) lines.push_back(shown(model, piece));
  for (FillBlock const& fill : layout.fills) {
    std::string text = fmt::format("fill @{} ", fill.offset);
    for (PieceCopy const& dim : fill.dims) text += fmt::format("({},{})", dim.count, dim.stride);
    lines.push_back(text);
  }
  return lines;
}

inline Shares shares(Model const& model, std::initializer_list<std::pair<char const*, Share>> all) {
  Shares result;
  for (auto const& [name, share] : all) result.set(model.axis(name), share);
  return result;
}

/// The sentence of the Error that `work` throws, "" when it throws none; the kind must be as given.
template <class Work>
std::string sentence_of(Work&& work, ErrorKind kind = ErrorKind::usage) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), kind) << error.sentence();
    return error.sentence();
  }
  return {};
}

}  // namespace reshard::test
