#include "core/containers/hdf5/element_boxes.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace reshard::hdf5 {
namespace {

/// The largest box that begins with element `first` and has at most `elements`. `strides` are those
/// of the array, in elements.
ElementBox box_from(std::span<std::uint64_t const> extents, std::span<std::uint64_t const> strides,
                    std::uint64_t first, std::uint64_t elements) {
  std::size_t along = extents.size() - 1;
  while (along > 0 && first % strides[along - 1] == 0 && strides[along - 1] <= elements) --along;
  ElementBox box;
  for (std::size_t d = 0; d < extents.size(); ++d) {
    box.start.push_back(first / strides[d] % extents[d]);
    box.count.push_back(d < along ? 1 : extents[d]);
  }
  box.count[along] = std::min(elements / strides[along], extents[along] - box.start[along]);
  return box;
}

}  // namespace

std::vector<ElementBox> element_boxes(std::span<std::uint64_t const> extents, std::uint64_t first,
                                      std::uint64_t elements) {
  if (extents.empty()) return {ElementBox{}};
  std::vector<std::uint64_t> strides(extents.size(), 1);
  for (std::size_t d = extents.size() - 1; d > 0; --d) strides[d - 1] = strides[d] * extents[d];
  RESHARD_EXPECT(first + elements <= strides[0] * extents[0]);
  std::vector<ElementBox> boxes;
  while (elements > 0) {
    boxes.push_back(box_from(extents, strides, first, elements));
    std::uint64_t volume = 1;
    for (std::uint64_t const count : boxes.back().count) volume *= count;
    first += volume;
    elements -= volume;
  }
  return boxes;
}

}  // namespace reshard::hdf5
