#include "core/device/copy_shape.hpp"

#include <algorithm>

namespace reshard {
namespace {

bool continues(ByteDim const& outer, ByteDim const& inner) {
  auto const count = static_cast<std::int64_t>(inner.count);
  return outer.from_stride == count * inner.from_stride &&
         outer.to_stride == count * inner.to_stride;
}

/// Joins dimensions that continue the run with it, in any position.
void lengthen_run(CopyShape& shape) {
  auto const continues_run = [&shape](ByteDim const& dim) {
    auto const run = static_cast<std::int64_t>(shape.run_bytes);
    return dim.from_stride == run && dim.to_stride == run;
  };
  for (auto found = shape.dims.begin();
       (found = std::find_if(shape.dims.begin(), shape.dims.end(), continues_run)) !=
       shape.dims.end();) {
    shape.run_bytes *= found->count;
    shape.dims.erase(found);
  }
}

}  // namespace

CopyShape simplified(std::uint64_t run_bytes, std::span<ByteDim const> dims) {
  CopyShape shape{run_bytes, {}};
  for (ByteDim const& dim : dims) {
    if (dim.count == 1) continue;
    if (!shape.dims.empty() && continues(shape.dims.back(), dim))
      shape.dims.back() = {shape.dims.back().count * dim.count, dim.from_stride, dim.to_stride};
    else
      shape.dims.push_back(dim);
  }
  lengthen_run(shape);
  return shape;
}

}  // namespace reshard
