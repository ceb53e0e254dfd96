// Random weights in random blocks, against the definition: element (r, c) of a stored weight
// belongs to block (r / rows, c / columns), all elements of a block share one number, and each
// number stands in one place.
#include <array>
#include <cstdio>
#include <random>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "core/layout/part_layout.hpp"
#include "tests/core/layout/slow_layout.hpp"

namespace reshard::test {
namespace {

/// A logical element: the tensor and its index along each axis that it has.
struct Element {
  std::string tensor;
  std::map<AxisId, Index> index;
  friend auto operator<=>(Element const&, Element const&) = default;
};

std::string shown(Element const& element) {
  std::string text = element.tensor;
  for (auto const& [axis, index] : element.index) text += fmt::format(" {}:{}", axis, index);
  return text;
}

/// From the text of SlowLayout: "x.q 0/6/2=1 0/2/1=0" is element 2 of axis 0.
Element element_of(std::string const& text) {
  std::istringstream words(text);
  Element element;
  words >> element.tensor;
  for (std::string word; words >> word;) {
    unsigned axis = 0;
    long mod = 0;
    long div = 0;
    long value = 0;
    EXPECT_EQ(std::sscanf(word.c_str(), "%u/%ld/%ld=%ld", &axis, &mod, &div, &value), 4) << word;
    element.index[axis] += value * div;
  }
  return element;
}

template <class Visit>
void for_each_index(std::vector<Index> const& shape, Visit&& visit) {
  if (std::ranges::find(shape, 0) != shape.end()) return;
  std::vector<Index> at(shape.size(), 0);
  for (bool more = true; more;) {
    visit(at);
    more = false;
    for (std::size_t d = at.size(); d-- > 0 && !more;) {
      more = ++at[d] < shape[d];
      if (!more) at[d] = 0;
    }
  }
}

/// Every element of a stored part by its offset, its indices in blocks of each axis.
/// `whole_digits`: all digits of an axis fit together.
struct PartElements {
  std::vector<Index> shape;
  std::map<Index, Element> at;
  std::map<std::string, std::map<AxisId, Index>> block;  ///< of a tensor and axis
  bool whole_digits = true;
};

/// The size of the blocks that digits of one axis count, 0 when they do not fit together.
Index block_of(std::vector<PieceDigit> digits, Index size) {
  std::ranges::sort(digits, {},
                    [](PieceDigit const& digit) { return std::pair(digit.div, digit.mod); });
  for (std::size_t i = 1; i < digits.size(); ++i)
    if (digits[i].div != digits[i - 1].mod) return 0;
  return digits.back().mod >= size ? digits.front().div : 0;
}

PartElements elements_of(Model& model, LayoutExpr const& part) {
  Layout const layout = evaluate(part, model.scope(), {});
  PartElements result;
  result.shape = layout.shape;
  for (Piece const& piece : layout.pieces) {
    std::string const tensor = model.tensors[index(piece.tensor)];
    std::map<AxisId, std::vector<PieceDigit>> digits;
    std::vector<Index> counts;
    for (PieceDigit const& digit : piece.digits) {
      digits[digit.axis].push_back(digit);
      counts.push_back(digit.count);
    }
    for (auto const& [axis, all] : digits) {
      Index const block = block_of(all, model.axes[axis].size);
      result.whole_digits = result.whole_digits && block > 0;
      result.block[tensor][axis] = std::max<Index>(block, 1);
    }
    for_each_index(counts, [&](std::vector<Index> const& at) {
      Element element{tensor, {}};
      Index offset = piece.offset;
      for (std::size_t d = 0; d < at.size(); ++d) {
        element.index[piece.digits[d].axis] +=
            (piece.digits[d].first + at[d]) * piece.digits[d].div;
        offset += at[d] * piece.digits[d].stride;
      }
      for (auto& [axis, index] : element.index) index /= result.block[tensor][axis];
      EXPECT_TRUE(result.at.emplace(offset, element).second) << "two elements at " << offset;
    });
  }
  return result;
}

/// A weight of two dimensions in blocks, element by element.
class SlowBlocks {
 public:
  /// A weight of more than `most` elements is not looked at.
  SlowBlocks(LayoutExpr const& weight, Model const& model, std::vector<PartDim> dims, Index most)
      : slow_(weight, model, none_), shape_(slow_.shape()), dims_(std::move(dims)) {
    if (elements() > most) return;
    for_each_index(shape_, [&](std::vector<Index> const& at) {
      std::string const text = slow_.at(at);
      if (text != "fill") elements_.emplace_back(block(at), element_of(text));
    });
  }

  std::vector<Index> shape() const {
    std::vector<Index> result;
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      result.push_back((shape_[d] + dims_[d].block - 1) / dims_[d].block);
      if (dims_[d].kind == PartDim::Kind::split) result.push_back(dims_[d].block / dims_[d].inner);
    }
    return result;
  }
  Index elements() const { return shape_[0] * shape_[1]; }
  bool larger_blocks() const { return dims_[0].block > shape_[0] || dims_[1].block > shape_[1]; }

  /// Whether numbers for blocks of every axis can be given: the blocks of a tensor are those of its
  /// axes, whatever they are.
  bool possible() const {
    std::map<std::pair<std::vector<Index>, std::string>, std::map<AxisId, std::pair<Index, Index>>>
        ranges;  // of an axis in a block
    std::map<std::vector<Index>, std::string> tensor_of;
    for (auto const& [block, element] : elements_) {
      if (tensor_of.emplace(block, element.tensor).first->second != element.tensor) return false;
      for (auto const& [axis, index] : element.index) {
        auto& range = ranges[{block, element.tensor}].try_emplace(axis, index, index).first->second;
        range = {std::min(range.first, index), std::max(range.second, index)};
      }
    }
    std::map<std::pair<std::string, AxisId>, Index>
        size;  // the first block of an axis is whole, so the largest is
    for (auto const& [key, of_axes] : ranges)
      for (auto const& [axis, range] : of_axes) {
        Index& known = size[{key.second, axis}];
        known = std::max(known, range.second - range.first + 1);
      }
    std::map<std::vector<Index>, Element> number_of;
    std::map<Element, std::vector<Index>> place_of;
    for (auto const& [block, element] : elements_) {
      Element number = element;
      for (auto& [axis, index] : number.index) index /= size.at({element.tensor, axis});
      if (number_of.emplace(block, number).first->second != number) return false;
      if (place_of.emplace(number, block).first->second != block) return false;
    }
    return true;
  }

  /// Compares a part: shape, and what is in the place of each block.
  void expect(PartElements const& part) const {
    ASSERT_EQ(part.shape, shape());
    std::set<Index> used;
    std::map<Element, Index> place_of;
    for (auto const& [block, element] : elements_) {
      Index offset = 0;
      for (std::size_t d = 0; d < block.size(); ++d) offset = offset * part.shape[d] + block[d];
      auto const found = part.at.find(offset);
      ASSERT_NE(found, part.at.end()) << "nothing at " << offset << " for " << shown(element);
      ASSERT_EQ(shown(found->second), shown(number(element, part)))
          << "at " << offset << " for " << shown(element);
      ASSERT_EQ(place_of.emplace(found->second, offset).first->second, offset)
          << shown(found->second) << " stands in two places";
      used.insert(offset);
    }
    EXPECT_EQ(used.size(), part.at.size()) << "numbers of no block";
  }

  /// Compares a part that has one number for each tensor where a dimension goes; `kept` are the
  /// axes of the other dimensions.
  void expect_tensors(PartElements const& part, std::set<AxisId> const& kept) const {
    std::set<Element> wanted;
    for (auto const& [block, element] : elements_) {
      Element number{element.tensor + ".s", {}};
      for (auto const& [axis, index] : element.index)
        if (kept.contains(axis)) number.index[axis] = index;
      wanted.insert(number);
    }
    std::multiset<Element> found;
    for (auto const& [offset, element] : part.at) found.insert(element);
    EXPECT_TRUE(std::ranges::equal(wanted, found))
        << wanted.size() << " wanted, " << found.size() << " found";
  }

 private:
  std::vector<Index> block(std::vector<Index> const& at) const {
    std::vector<Index> result;
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      result.push_back(at[d] / dims_[d].block);
      if (dims_[d].kind == PartDim::Kind::split)
        result.push_back(at[d] % dims_[d].block / dims_[d].inner);
    }
    return result;
  }

  static Element number(Element const& element, PartElements const& part) {
    Element result{element.tensor + ".s", {}};
    auto const blocks = part.block.find(result.tensor);
    if (blocks == part.block.end()) return result;
    for (auto const& [axis, block] : blocks->second)
      result.index[axis] = element.index.at(axis) / block;
    return result;
  }

  Shares none_;
  SlowLayout slow_;
  std::vector<Index> shape_;
  std::vector<PartDim> dims_;
  std::vector<std::pair<std::vector<Index>, Element>> elements_;
};

/// A random weight: tags in one of two dimensions at most, every axis once on each path.
class RandomWeight {
 public:
  explicit RandomWeight(std::mt19937& random) : random_(random) {
    static constexpr Index sizes[] = {1, 2, 2, 3, 4, 4, 6, 8};
    for (char axis = 'a'; axis <= 'e'; ++axis)
      model.axes.add(std::string(1, axis), sizes[static_cast<std::size_t>(between(0, 7))]);
    tagged_dimension = between(0, 3) > 0 ? 0 : 1;
    std::string const tagged = product(some({"a", "b", "c"}), 0);
    std::string const plain = product(some({"d", "e"}), 9);
    text = "w: (" + (tagged_dimension == 0 ? tagged + ") (" + plain : plain + ") (" + tagged) + ")";
  }

  int between(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }

  /// The axes that stand in a dimension.
  std::set<AxisId> axes_of(std::size_t dimension) const {
    return dimension == tagged_dimension ? std::set<AxisId>{0, 1, 2} : std::set<AxisId>{3, 4};
  }

  std::string sizes() const {
    std::string all;
    for (AxisId axis = 0; axis < model.axes.size(); ++axis)
      all += fmt::format(" {} {}", model.axes[axis].name, model.axes[axis].size);
    return all;
  }
  bool has_axis_of_one() const {
    for (AxisId axis = 0; axis < model.axes.size(); ++axis)
      if (model.axes[axis].size == 1) return true;
    return false;
  }

  Model model{};
  std::string text;
  std::size_t tagged_dimension = 0;

 private:
  std::vector<std::string> some(std::vector<std::string> axes) {
    axes.resize(static_cast<std::size_t>(between(1, static_cast<int>(axes.size()))));
    std::ranges::shuffle(axes, random_);
    return axes;
  }

  /// One axis, whole or in digits from the outermost.
  std::string digits(std::string const& axis) {
    Index const size = model.axes[model.axis(axis)].size;
    Index const inner = between(2, 4);
    if (between(0, 3) > 0 || size % inner != 0 || size == inner) return axis;
    return fmt::format("{}/{} {}%{}", axis, inner, axis, inner);
  }

  std::string product(std::vector<std::string> axes, int depth) {
    std::string made;
    while (!axes.empty()) {
      if (depth < 2 && between(0, 2) == 0) return made + " " + alternatives(axes, depth);
      made += " " + digits(axes.back());
      axes.pop_back();
    }
    if (depth < 2 && between(0, 5) == 0) made += " " + alternatives({}, depth);
    if (between(0, 15) == 0) made += " 1";
    return made;
  }

  std::string alternatives(std::vector<std::string> const& axes, int depth) {
    std::string made = "(";
    for (int count = between(1, 3), i = 0; i < count; ++i) {
      std::vector<std::string> kept;
      for (std::string const& axis : axes)
        if (between(0, 4) > 0) kept.push_back(axis);
      made += fmt::format("{}t{}:{}", i > 0 ? " | " : "", tag_++, product(kept, depth + 1));
    }
    return made + ")";
  }

  std::mt19937& random_;
  int tag_ = 0;
};

std::optional<LayoutExpr> part_or_refusal(RandomWeight& weight, std::vector<PartDim> const& dims) {
  auto const size_of = [&](std::string const& axis) {
    return weight.model.axes[weight.model.axis(axis)].size;
  };
  try {
    return part_layout(parse_layout(weight.text), dims, "", ".s", size_of);
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.sentence().find("straddle"), std::string::npos) << error.sentence();
    return std::nullopt;
  }
}

// Of a weight: the slow version is slow.
constexpr Index most_elements = 160;

std::vector<PartDim> random_blocks(RandomWeight& weight) {
  static constexpr Index blocks[] = {1, 2, 2, 3, 4, 4, 6, 8, 16};
  std::vector<PartDim> dims(2);
  for (PartDim& dim : dims) dim.block = blocks[static_cast<std::size_t>(weight.between(0, 8))];
  return dims;
}

TEST(PartLayoutOracle, EveryBlockHasItsNumberAndEveryNumberOnePlace) {
  std::mt19937 random(20261121);
  int made = 0;
  int refused = 0;
  for (int round = 0; round < 3000 && !testing::Test::HasFailure(); ++round) {
    RandomWeight weight(random);
    std::vector<PartDim> const dims = random_blocks(weight);
    SCOPED_TRACE(fmt::format("round {}: '{}' in blocks {}, {}; sizes{}", round, weight.text,
                             dims[0].block, dims[1].block, weight.sizes()));
    LayoutExpr const expr = parse_layout(weight.text);
    SlowBlocks const slow(expr, weight.model, dims, most_elements);
    if (slow.elements() > most_elements) continue;
    auto const part = part_or_refusal(weight, dims);
    if (part) {
      EXPECT_TRUE(slow.possible());
      PartElements const elements = elements_of(weight.model, *part);
      EXPECT_TRUE(elements.whole_digits);
      slow.expect(elements);
      ++made;
    } else {
      // Refused although there are such blocks: an axis in two digits side by side, a short block
      // behind an axis of extent 1, a block that is larger than its dimension.
      bool const known = weight.text.find('%') != std::string::npos || weight.has_axis_of_one() ||
                         slow.larger_blocks();
      EXPECT_TRUE(known || !slow.possible());
      ++refused;
    }
  }
  EXPECT_GT(made, 500);
  EXPECT_GT(refused, 500);
}

TEST(PartLayoutOracle, WhereADimensionGoesEachTensorHasOneNumber) {
  using Kind = PartDim::Kind;
  std::mt19937 random(7);
  for (int round = 0; round < 1500 && !testing::Test::HasFailure(); ++round) {
    RandomWeight weight(random);
    std::vector<PartDim> dims(2);
    std::set<AxisId> kept;
    for (std::size_t d = 0; d < 2; ++d) {
      dims[d].kind = std::array{Kind::blocks, Kind::all,
                                Kind::one}[static_cast<std::size_t>(weight.between(0, 2))];
      if (dims[d].kind == Kind::blocks) kept.merge(weight.axes_of(d));
    }
    SCOPED_TRACE(fmt::format("round {}: '{}'; sizes{}", round, weight.text, weight.sizes()));
    LayoutExpr const expr = parse_layout(weight.text);
    SlowBlocks const slow(expr, weight.model, {{}, {}}, most_elements);
    if (slow.elements() > most_elements) continue;
    auto const part = part_or_refusal(weight, dims);
    ASSERT_TRUE(part);
    PartElements const elements = elements_of(weight.model, *part);
    slow.expect_tensors(elements, kept);
    bool const tags = weight.text.find('t') != std::string::npos;
    std::size_t rank = 2;
    for (std::size_t d = 0; d < 2; ++d)
      rank -= dims[d].kind == Kind::all && !(tags && d == weight.tagged_dimension) ? 1U : 0U;
    EXPECT_EQ(elements.shape.size(), rank);
  }
}

TEST(PartLayoutOracle, SplitBlocksAreADimensionOfTheirOwn) {
  std::mt19937 random(11);
  int made = 0;
  for (int round = 0; round < 3000 && !testing::Test::HasFailure(); ++round) {
    RandomWeight weight(random);
    std::vector<PartDim> dims = random_blocks(weight);
    dims[1] = {PartDim::Kind::split, Index{2} << weight.between(0, 2),
               Index{1} << weight.between(0, 1)};
    SCOPED_TRACE(fmt::format("round {}: '{}' in blocks {}, {}:{}; sizes{}", round, weight.text,
                             dims[0].block, dims[1].block, dims[1].inner, weight.sizes()));
    LayoutExpr const expr = parse_layout(weight.text);
    SlowBlocks const slow(expr, weight.model, dims, most_elements);
    if (slow.elements() > most_elements) continue;
    auto const part = part_or_refusal(weight, dims);
    if (!part) continue;
    PartElements const elements = elements_of(weight.model, *part);
    EXPECT_TRUE(elements.whole_digits);
    slow.expect(elements);
    ++made;
  }
  EXPECT_GT(made, 100);
}

}  // namespace
}  // namespace reshard::test
