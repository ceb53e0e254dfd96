// Random damaged tilings against counting.
#include <array>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/core/layout/random_pieces.hpp"

namespace reshard::test {
namespace {

using Counts = std::map<std::vector<Index>, int>;

Counts counts_of(RandomTensor const& tensor, std::vector<Piece> const& pieces) {
  Counts counts;
  for (Piece const& piece : pieces)
    for (auto const& element : elements_of(tensor, piece)) ++counts[element.first];
  return counts;
}

/// A part of an axis that a fault names: "a1%6/2 0:3".
struct NamedPart {
  std::size_t axis = 0;
  Index mod = 0;
  Index div = 1;
  Index begin = 0;
  Index end = 0;
};

std::vector<NamedPart> parsed(RandomTensor const& tensor, std::string text) {
  std::vector<NamedPart> parts;
  std::ranges::replace(text, ',', ' ');
  std::istringstream words(text);
  std::string axis;
  std::string range;
  while (words >> axis >> range) {
    NamedPart part;
    part.axis = std::stoul(axis.substr(1));
    part.mod = tensor.model.axes[static_cast<AxisId>(part.axis)].size;
    if (auto const at = axis.find('%'); at != std::string::npos)
      part.mod = std::stoll(axis.substr(at + 1));
    if (auto const at = axis.find('/'); at != std::string::npos)
      part.div = std::stoll(axis.substr(at + 1));
    part.begin = std::stoll(range);
    part.end = std::stoll(range.substr(range.find(':') + 1));
    parts.push_back(part);
  }
  return parts;
}

bool lies_in(std::vector<Index> const& index, std::vector<NamedPart> const& parts) {
  return std::ranges::all_of(parts, [&](NamedPart const& part) {
    Index const value = index[part.axis] % part.mod / part.div;
    return value >= part.begin && value < part.end;
  });
}

/// Every element of the cell that a fault names must be as the fault says.
void check_fault(RandomTensor const& tensor, TilingFault const& fault, Counts const& held,
                 Counts const& domain) {
  std::vector<NamedPart> const cell =
      fault.where == "its only element" ? std::vector<NamedPart>{} : parsed(tensor, fault.where);
  int elements = 0;
  auto const check = [&](std::vector<Index> const& index, int wanted_in_domain) {
    if (!lies_in(index, cell)) return;
    ++elements;
    auto const found = held.find(index);
    int const holders = found == held.end() ? 0 : found->second;
    EXPECT_EQ(domain.contains(index) ? 1 : 0, wanted_in_domain) << fault.where;
    EXPECT_EQ(fault.holders == 1 ? 1 : holders, fault.holders) << fault.where;
  };
  if (fault.holders == 1)
    for (auto const& [index, count] : held) check(index, 0);
  else
    for (auto const& [index, count] : domain) check(index, 1);
  EXPECT_GT(elements, 0) << fault.where;
}

void damage(RandomTensor& tensor, std::vector<Piece>& pieces) {
  if (pieces.empty()) return;
  auto const victim = static_cast<std::size_t>(tensor.between(0, std::ssize(pieces) - 1));
  Index const kind = tensor.between(0, 3);
  if (kind == 0) {
    pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(victim));
  } else if (kind == 1) {
    pieces.push_back(pieces[victim]);
  } else if (kind == 2) {
    pieces.push_back(tensor.piece(tensor.any_box()));
  } else {
    PieceDigits& digits = pieces[victim].digits;
    auto const chosen =
        static_cast<std::size_t>(tensor.between(0, static_cast<Index>(digits.size()) - 1));
    digits.change(chosen, [&](PieceDigit& digit) {
      Index const extent = digit.mod / digit.div;
      digit.first = tensor.between(0, extent - 1);
      digit.count = tensor.between(1, extent - digit.first);
    });
  }
}

/// Runs of the tensor's coarsest digits: all of it, or some blocks of each axis.
std::vector<DomainAxis> random_domain(RandomTensor& tensor) {
  std::vector<DomainAxis> domain;
  for (AxisId const axis : tensor.order) {
    auto const top = std::ranges::find(tensor.digits, axis, &RandomTensor::Digit::axis);
    DomainAxis next{axis, 1, {}};
    Index const blocks = top->extent();
    if (tensor.between(0, 2) > 0) {
      next.runs = {{0, blocks * top->div}};
    } else {
      for (Index begin = tensor.between(0, 1); begin < blocks; begin += 2)
        next.runs.push_back({begin * top->div, (begin + 1) * top->div});
    }
    domain.push_back(next);
  }
  return domain;
}

/// Boxes that tile the domain: the product of the runs, each cut at random.
void add_cover(RandomTensor& tensor, std::vector<DomainAxis> const& domain, std::size_t axis,
               DigitBox const& box, std::vector<Piece>& pieces) {
  if (axis == domain.size()) {
    for (DigitBox const& part : tensor.pieces_of(box)) pieces.push_back(tensor.piece(part));
    return;
  }
  auto const top = static_cast<std::size_t>(
      std::ranges::find(tensor.digits, domain[axis].axis, &RandomTensor::Digit::axis) -
      tensor.digits.begin());
  for (reshard::Run const& run : domain[axis].runs) {
    DigitBox narrower = box;
    narrower[top] = {run.begin / tensor.digits[top].div, run.end / tensor.digits[top].div, false};
    add_cover(tensor, domain, axis + 1, narrower, pieces);
  }
}

Counts domain_counts(RandomTensor& tensor, std::vector<DomainAxis> const& domain) {
  std::vector<Piece> cover;
  add_cover(tensor, domain, 0, tensor.everything(), cover);
  return counts_of(tensor, cover);
}

TEST(TileOracle, AgreesWithCountingElementByElement) {
  constexpr std::uint32_t first_seed = 61000;
  constexpr std::uint32_t cases = 6000;
  std::printf("seeds %u to %u\n", first_seed, first_seed + cases - 1);
  std::array<int, 4> seen{};  // proved, nothing, outside, several
  for (std::uint32_t seed = first_seed; seed < first_seed + cases; ++seed) {
    std::mt19937 random(seed);
    RandomTensor tensor(random);
    Index volume = 1;
    for (AxisId const axis : tensor.order) volume *= tensor.model.axes[axis].size;
    if (volume > 400) continue;
    std::vector<DomainAxis> const domain = random_domain(tensor);
    std::vector<Piece> pieces;
    add_cover(tensor, domain, 0, tensor.everything(), pieces);
    for (Index times = tensor.between(0, 2); times > 0; --times) damage(tensor, pieces);
    std::ranges::shuffle(pieces, random);
    Counts const held = counts_of(tensor, pieces);
    Counts const wanted = domain_counts(tensor, domain);
    std::optional<TilingFault> const fault = tile(pieces, domain, tensor.model.axes);
    ASSERT_EQ(!fault, held == wanted) << "seed " << seed;
    if (fault) check_fault(tensor, *fault, held, wanted);
    ++seen[fault ? static_cast<std::size_t>(std::min(fault->holders, 2) + 1) : 0];
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  std::printf("%d proved, %d with a gap, %d outside, %d held twice\n", seen[0], seen[1], seen[2],
              seen[3]);
  for (int const count : seen) EXPECT_GT(count, 100);
}

}  // namespace
}  // namespace reshard::test
