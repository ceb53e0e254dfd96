#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/base/tables/integers.hpp"
#include "core/base/text/shared_text.hpp"
#include "core/layout/axis.hpp"

namespace reshard {

/// One axis of a logical tensor: counted in blocks when div > 1 (`hidden/32`), limited to a set
/// when `set` is not empty ("layer.moe").
struct LogicalAxis {
  AxisId axis = 0;
  Index div = 1;
  SharedText set;
  friend bool operator==(LogicalAxis const&, LogicalAxis const&) = default;
};

/// The axes of a logical tensor in canonical order: most tensors have those of another one, so the
/// process has each different list once, as long as it runs. A copy is four bytes. May be used by
/// several threads at once.
class LogicalAxes {
 public:
  LogicalAxes() = default;
  LogicalAxes(std::vector<LogicalAxis> const& axes) : number_(number_of(axes)) {}
  LogicalAxes(std::initializer_list<LogicalAxis> axes)
      : LogicalAxes(std::vector<LogicalAxis>(axes)) {}

  /// Stays where it is as long as the process runs.
  std::vector<LogicalAxis> const& list() const;
  operator std::vector<LogicalAxis> const&() const { return list(); }

  std::uint32_t number() const { return number_; }  ///< equal for equal lists
  bool empty() const { return number_ == 0; }
  std::size_t size() const { return list().size(); }
  LogicalAxis const* begin() const { return list().data(); }
  LogicalAxis const* end() const { return begin() + size(); }
  LogicalAxis const& operator[](std::size_t at) const { return list()[at]; }
  LogicalAxis const& front() const { return list().front(); }
  LogicalAxis const& back() const { return list().back(); }

  friend bool operator==(LogicalAxes a, LogicalAxes b) { return a.number_ == b.number_; }

 private:
  static std::uint32_t number_of(std::vector<LogicalAxis> const& axes);

  std::uint32_t number_ = 0;  ///< 0: no axes
};

}  // namespace reshard
