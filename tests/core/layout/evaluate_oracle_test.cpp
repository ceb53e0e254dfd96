// Random expressions under random shares, boxes, flat ranges and strides, against the pointwise
// evaluator.
#include <map>

#include <gtest/gtest.h>

#include "tests/core/layout/random_layout.hpp"
#include "tests/core/layout/slow_layout.hpp"

namespace reshard::test {
namespace {

using Elements = std::multimap<Index, std::string>;

/// Calls `visit` with every index of a box, in row-major order.
template <class Visit>
void for_each_index(std::vector<Index> const& begin, std::vector<Index> const& end, Visit&& visit) {
  for (std::size_t d = 0; d < begin.size(); ++d)
    if (begin[d] >= end[d]) return;
  std::vector<Index> at = begin;
  for (;;) {
    visit(at);
    std::size_t d = at.size();
    while (d > 0 && ++at[d - 1] == end[d - 1]) {
      at[d - 1] = begin[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

void add_copies(Elements& elements, std::span<PieceCopy const> copies, Index offset,
                std::string const& text) {
  if (copies.empty()) {
    elements.emplace(offset, text);
    return;
  }
  for (Index i = 0; i < copies[0].count; ++i)
    add_copies(elements, copies.subspan(1), offset + i * copies[0].stride, text);
}

/// Every element that pieces and fills place somewhere, by its offset.
Elements elements_of(Model const& model, Layout const& layout) {
  Elements elements;
  for (Piece const& piece : layout.pieces) {
    std::vector<Index> counts;
    for (PieceDigit const& digit : piece.digits) counts.push_back(digit.count);
    for_each_index(std::vector<Index>(counts.size(), 0), counts, [&](std::vector<Index> const& at) {
      Index offset = piece.offset;
      std::vector<std::string> digits;
      for (std::size_t k = 0; k < at.size(); ++k) {
        offset += at[k] * piece.digits[k].stride;
        digits.push_back(digit_text(piece.digits[k], piece.digits[k].first + at[k]));
      }
      add_copies(elements, piece.copies, offset,
                 element_text(model.tensors[index(piece.tensor)], digits));
    });
  }
  for (FillBlock const& fill : layout.fills) add_copies(elements, fill.dims, fill.offset, "fill");
  return elements;
}

struct Case {
  std::uint32_t seed = 0;
  std::mt19937 random;
  RandomLayout made;
  LayoutExpr expr;
  std::vector<Index> shape;
  Index volume = 1;

  explicit Case(std::uint32_t number)
      : seed(number), random(number), made(random_layout(random)), expr(parse_layout(made.text)) {
    shape = slow().shape();
    for (Index const extent : shape) volume *= extent;
  }
  SlowLayout slow() const { return {expr, made.model, made.shares}; }
  Index between(Index least, Index most) {
    return std::uniform_int_distribution<Index>(least, most)(random);
  }
};

std::vector<Index> row_major(std::vector<Index> const& shape) {
  std::vector<Index> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

Index dot(std::vector<Index> const& a, std::vector<Index> const& b) {
  Index sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

constexpr std::uint32_t cases = 3000;
constexpr Index largest = 160;

/// Runs `check` on thousands of cases small enough; stops at the first that fails.
template <class Check>
void over_cases(std::uint32_t first_seed, Check&& check) {
  std::printf("seeds %u to %u\n", first_seed, first_seed + cases - 1);
  std::uint32_t checked = 0;
  for (std::uint32_t seed = first_seed; seed < first_seed + cases; ++seed) {
    Case c(seed);
    if (c.volume > largest) continue;
    ++checked;
    check(c);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ": " << c.made.text;
  }
  EXPECT_GT(checked, cases / 2);
}

TEST(EvaluateOracle, WholeStoredTensors) {
  over_cases(1000, [](Case& c) {
    Layout const layout = evaluate(c.expr, c.made.model.scope(), c.made.shares);
    ASSERT_EQ(layout.shape, c.shape);
    std::vector<Index> const strides = row_major(c.shape);
    Elements expected;
    for_each_index(
        std::vector<Index>(c.shape.size(), 0), c.shape,
        [&](std::vector<Index> const& at) { expected.emplace(dot(at, strides), c.slow().at(at)); });
    ASSERT_EQ(elements_of(c.made.model, layout), expected);
  });
}

TEST(EvaluateOracle, Strides) {
  over_cases(11000, [](Case& c) {
    std::vector<Index> strides;
    for (std::size_t d = 0; d < c.shape.size(); ++d) strides.push_back(c.between(-3, 50));
    Layout const layout = evaluate(c.expr, c.made.model.scope(), c.made.shares, strides);
    std::vector<std::pair<Index, std::string>> expected;
    for_each_index(std::vector<Index>(c.shape.size(), 0), c.shape,
                   [&](std::vector<Index> const& at) {
                     expected.emplace_back(dot(at, strides), c.slow().at(at));
                   });
    Elements const elements = elements_of(c.made.model, layout);
    std::vector<std::pair<Index, std::string>> found(elements.begin(), elements.end());
    std::ranges::sort(expected);
    std::ranges::sort(found);
    ASSERT_EQ(found, expected);
  });
}

TEST(EvaluateOracle, Boxes) {
  over_cases(21000, [](Case& c) {
    std::vector<Index> begin;
    std::vector<Index> end;
    std::vector<Index> shape;
    for (Index const extent : c.shape) {
      begin.push_back(c.between(0, extent));
      end.push_back(c.between(begin.back(), extent));
      shape.push_back(end.back() - begin.back());
    }
    Layout const layout = evaluate_box(c.expr, c.made.model.scope(), c.made.shares, begin, end);
    ASSERT_EQ(layout.shape, shape);
    std::vector<Index> const strides = row_major(shape);
    Elements expected;
    for_each_index(begin, end, [&](std::vector<Index> const& at) {
      expected.emplace(dot(at, strides) - dot(begin, strides), c.slow().at(at));
    });
    ASSERT_EQ(elements_of(c.made.model, layout), expected);
  });
}

TEST(EvaluateOracle, FlatRanges) {
  over_cases(31000, [](Case& c) {
    Index const begin = c.between(0, c.volume);
    Index const end = c.between(begin, c.volume);
    Layout const layout = evaluate_flat(c.expr, c.made.model.scope(), c.made.shares, begin, end);
    std::vector<Index> const strides = row_major(c.shape);
    Elements expected;
    for_each_index(std::vector<Index>(c.shape.size(), 0), c.shape,
                   [&](std::vector<Index> const& at) {
                     Index const flat = dot(at, strides);
                     if (flat >= begin && flat < end)
                       expected.emplace(flat - begin, c.slow().at(at));
                   });
    ASSERT_EQ(elements_of(c.made.model, layout), expected);
  });
}

/// The element of a share at (i, j, …) is the element of the whole tensor at (rows[0][i],
/// rows[1][j], …).
TEST(EvaluateOracle, RowsOfAShareInTheWhole) {
  over_cases(41000, [](Case& c) {
    if (c.made.has_fill_runs) return;
    std::vector<std::vector<Index>> rows;
    for (std::vector<reshard::Run> const& runs :
         share_rows(c.expr, c.made.model.scope(), c.made.shares)) {
      rows.emplace_back();
      for (reshard::Run const& run : runs)
        for (Index row = run.begin; row < run.end; ++row) rows.back().push_back(row);
    }
    ASSERT_EQ(rows.size(), c.shape.size());
    for (std::size_t d = 0; d < rows.size(); ++d) ASSERT_EQ(std::ssize(rows[d]), c.shape[d]);
    Shares const none;
    SlowLayout const whole(c.expr, c.made.model, none);
    for_each_index(std::vector<Index>(c.shape.size(), 0), c.shape,
                   [&](std::vector<Index> const& at) {
                     std::vector<Index> there;
                     for (std::size_t d = 0; d < at.size(); ++d)
                       there.push_back(rows[d][static_cast<std::size_t>(at[d])]);
                     ASSERT_EQ(whole.at(there), c.slow().at(at));
                   });
  });
}

}  // namespace
}  // namespace reshard::test
