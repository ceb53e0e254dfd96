#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace reshard::hdf5 {

/// A box of a dataset: where it begins and how many indices it has, in each dimension.
struct ElementBox {
  std::vector<std::uint64_t> start;
  std::vector<std::uint64_t> count;
};

/// The fewest boxes that follow each other in the file and make up elements [first, +elements) of a
/// row-major array: at most 2 * rank - 1; for a scalar one box of no dimension.
///
///   extents [3, 4], elements [2, 11): [0, 2:4], [1, 0:4], [2, 0:3]
///
/// Pre: the range lies within the array.
std::vector<ElementBox> element_boxes(std::span<std::uint64_t const> extents, std::uint64_t first,
                                      std::uint64_t elements);

}  // namespace reshard::hdf5
