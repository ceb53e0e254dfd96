#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "stages/plan/source/catalog/stored_elements.hpp"

namespace reshard {

/// One element in a file.
struct ElementPlace {
  std::size_t stored = 0;    ///< in StoredTable::tensors
  std::vector<Index> index;  ///< in the stored tensor
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  DType dtype = DType::u8;
  int add = 0;  ///< what the stored value has over the logical one
};

/// Where a stored element lies, by the header of its file; nothing where no chunk holds it, or
/// where an element is smaller than a byte.
std::optional<ElementPlace> place_in_file(Checkpoint const& checkpoint,
                                          StoredElements const& tensor, std::vector<Index> index);

/// Finds stored elements by what they mean.
class ElementFinder {
 public:
  /// Both outlive the finder.
  ElementFinder(Checkpoint const& checkpoint, ElementTable const& table);

  /// The first place of an element of a logical tensor. `element` is in the numbers of this table's
  /// axes.
  std::optional<ElementPlace> find(std::string const& tensor, LogicalElement const& element) const;
  /// The names of the parts of a quantised weight, "values" first; empty where it has none.
  std::vector<std::string> parts_of(std::string const& tensor) const;

 private:
  /// Stored tensors of one logical one whose names count the same axes, by what they count.
  struct Group {
    std::vector<ElementRule::Named> counted;  ///< `value` means nothing
    std::unordered_map<std::string, std::vector<std::size_t>> by_values;
  };
  void add(std::size_t number);
  static std::optional<std::string> key_of(Group const& group, AxisTable const& axes,
                                           LogicalElement const& element);

  Checkpoint const& checkpoint_;
  ElementTable const& table_;
  std::map<std::string, std::vector<Group>> groups_;
};

}  // namespace reshard
