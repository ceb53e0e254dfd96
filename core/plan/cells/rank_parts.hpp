#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/plan/plan.hpp"

namespace reshard {

/// The limits of the parts of a rank.
struct PartLimits {
  std::size_t most_of_rank = 32;
  std::size_t least_of_rank = 4;  ///< a rank that would have fewer parts has one
  std::size_t most_in_all = 2048;
  std::uint64_t least_weight = 0;  ///< of a part: bytes read and written
};

/// The cells of all ranks (RankCells), each rank's cut into parts that another rank may do in its
/// place: contiguous in the plan's order, in the order of the ranks. The first part of a rank is
/// always its own. Depends only on plan, ranks and limits. Does not refer to the plan.
class RankParts {
 public:
  /// One part for each rank.
  RankParts(Plan const& plan, int ranks);
  /// No cut is made between cells whose bytes interleave in a target file.
  RankParts(Plan const& plan, int ranks, PartLimits const& limits);

  std::size_t count() const { return begins_.size() - 1; }
  int ranks() const { return static_cast<int>(first_.size()) - 1; }
  /// Whether no rank has more than one part.
  bool are_whole() const { return count() == first_.size() - 1; }
  CellRange cells(std::size_t part) const { return {begins_[part], begins_[part + 1]}; }
  /// Bytes read plus bytes written.
  std::uint64_t weight(std::size_t part) const { return weights_[part]; }
  /// The numbers of a rank's parts.
  HalfOpen<std::size_t> of_rank(int rank) const {
    return {first_[static_cast<std::size_t>(rank)], first_[static_cast<std::size_t>(rank) + 1]};
  }
  /// The rank whose part this is.
  int rank(std::size_t part) const;

 private:
  void add(Plan const& plan, std::size_t begin, std::size_t end);

  std::vector<std::size_t> begins_;     ///< the first cell of each part, then the number of cells
  std::vector<std::size_t> first_;      ///< the first part of each rank, then their number
  std::vector<std::uint64_t> weights_;  ///< by part
};

}  // namespace reshard
