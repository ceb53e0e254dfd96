#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/tables/integers.hpp"

namespace reshard {

/// The number of an axis in its AxisTable.
using AxisId = std::uint32_t;

/// A named dimension of the model and its size: `group` 4, `expert` 128. An axis is a role:
/// dimensions that are cut differently are different axes.
struct Axis {
  std::string name;
  Index size = 0;
};

/// The axes of one model, each with one size.
class AxisTable {
 public:
  /// Adds an axis; a duplicate name is an internal Error.
  AxisId add(std::string name, Index size);
  void resize(AxisId axis, Index size) { axes_[axis].size = size; }
  /// Returns -1 if there is none.
  int find(std::string_view name) const;
  Axis const& operator[](AxisId id) const { return axes_[id]; }
  std::size_t size() const { return axes_.size(); }
  std::vector<std::string> names() const;

 private:
  std::vector<Axis> axes_;
  std::unordered_map<std::string, AxisId> ids_;
};

/// Half-open run of indices of an axis, or `end - begin` elements of no tensor (padding) when
/// `fill`.
struct Run {
  Index begin = 0;
  Index end = 0;
  bool fill = false;
  friend bool operator==(Run const&, Run const&) = default;
};

/// The part of an axis in one place of a checkpoint: an ordered list of runs. The stored index
/// counts through them from 0.
///
///   vocab 10 padded to 16, rank 1 of 2: {[8, 10), fill 6}
///   experts 5 and 2, in this order: {[5, 6), [2, 3)}
using Share = std::vector<Run>;

/// The number of stored indices of a share.
Index extent(Share const& share);

/// The stored index of an index of the axis, or -1 if the share does not contain it.
Index position_of(Share const& share, Index index);
/// The index of the axis at a stored index, or -1 past the end and in padding.
Index index_at(Share const& share, Index position);

/// The share of each axis; an axis without an entry is complete.
class Shares {
 public:
  void set(AxisId axis, Share share);
  /// nullptr: the complete axis.
  Share const* find(AxisId axis) const;

 private:
  std::vector<std::pair<AxisId, Share>> shares_;
};

}  // namespace reshard
