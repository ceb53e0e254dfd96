#include "core/plan/views/merged_weight.hpp"

#include <algorithm>

namespace reshard {
namespace {

/// Where a walk through the dimensions of a part stands.
struct At {
  Index element = 0;
  Index out = 0;
  Index in = 0;
  Index pair = 0;

  At moved(MergedDim const& dim, Index steps) const {
    return {element + steps * dim.stride, out + steps * dim.out, in + steps * dim.in,
            pair + steps * dim.pair};
  }
};

bool of_out(MergedDim const& dim) { return dim.out != 0 && dim.in == 0 && dim.pair == 0; }
bool of_in(MergedDim const& dim) { return dim.in != 0 && dim.out == 0 && dim.pair == 0; }

class Walk {
 public:
  Walk(MergedPart const& part, Index first, Index end,
       std::function<void(MergedBlock const&)> const& take)
      : part_(part), first_(first), end_(end), take_(take) {
    reach_.assign(part.dims.size() + 1, 1);
    for (std::size_t d = part.dims.size(); d-- > 0;)
      reach_[d] = reach_[d + 1] + (part.dims[d].count - 1) * part.dims[d].stride;
  }

  void run() { walk(0, {part_.offset, part_.out, part_.in, part_.pair}); }

 private:
  /// The steps along dimension d that touch the range, and those that lie in it completely.
  struct Steps {
    Index begin = 0;
    Index whole_begin = 0;
    Index whole_end = 0;
    Index end = 0;
  };
  Steps steps(std::size_t d, Index element) const {
    MergedDim const& dim = part_.dims[d];
    Index const reach = reach_[d + 1];
    auto const up_to = [&](Index bound) {  // how many steps begin before it
      return bound <= element
                 ? 0
                 : std::min(dim.count, (bound - element + dim.stride - 1) / dim.stride);
    };
    Steps result;
    result.begin = up_to(first_ - reach + 1);
    result.whole_begin = up_to(first_);
    result.whole_end = std::max(up_to(end_ - reach + 1), result.whole_begin);
    result.end = std::max(up_to(end_), result.whole_end);
    return result;
  }

  void walk(std::size_t d, At const& at) {
    if (d == part_.dims.size()) {
      if (at.element >= first_ && at.element < end_) single(at);
      return;
    }
    MergedDim const& dim = part_.dims[d];
    Steps const here = steps(d, at.element);
    if (columns_only(d)) {
      if (here.begin < here.end) row(at.moved(dim, here.begin), dim, here.end - here.begin);
      return;
    }
    bool const matrix = rows_of_matrix(d);
    Index const whole_begin = matrix ? here.whole_begin : here.end;
    Index const whole_end = matrix ? here.whole_end : here.end;
    for (Index i = here.begin; i < whole_begin; ++i) walk(d + 1, at.moved(dim, i));
    if (whole_begin < whole_end)
      rows(at.moved(dim, whole_begin), dim, whole_end - whole_begin, part_.dims[d + 1]);
    for (Index i = whole_end; i < here.end; ++i) walk(d + 1, at.moved(dim, i));
  }

  static bool is_run(MergedDim const& dim) {
    return (of_out(dim) && dim.out == 1) || (of_in(dim) && dim.in == 1);
  }
  bool columns_only(std::size_t d) const {
    return d + 1 == part_.dims.size() && is_run(part_.dims[d]);
  }
  bool rows_of_matrix(std::size_t d) const {
    if (d + 2 != part_.dims.size() || !is_run(part_.dims[d + 1])) return false;
    return of_out(part_.dims[d + 1]) ? of_in(part_.dims[d]) : of_out(part_.dims[d]);
  }

  /// False if the matrix has no pair.
  bool begins(At const& at, MergedBlock& block) const {
    block.pair = (*part_.pairs)[static_cast<std::size_t>(at.pair)];
    block.element = at.element;
    return block.pair != no_pair;
  }

  void single(At const& at) const {
    MergedBlock block;
    if (!begins(at, block)) return;
    block.first_row = at.out;
    block.first_column = at.in;
    take_(block);
  }

  void row(At const& at, MergedDim const& columns, Index count) const {
    MergedBlock block;
    if (!begins_along(at, columns, block)) return;
    block.columns = count;
    take_(block);
  }

  void rows(At const& at, MergedDim const& rows, Index count, MergedDim const& columns) const {
    MergedBlock block;
    if (!begins_along(at, columns, block)) return;
    block.row_step = block.transposed ? rows.in : rows.out;
    block.rows = count;
    block.row_stride = rows.stride;
    block.columns = columns.count;
    take_(block);
  }

  /// A block whose columns are the elements of a dimension.
  bool begins_along(At const& at, MergedDim const& columns, MergedBlock& block) const {
    if (!begins(at, block)) return false;
    block.transposed = of_out(columns);
    block.first_row = block.transposed ? at.in : at.out;
    block.first_column = block.transposed ? at.out : at.in;
    block.column_stride = columns.stride;
    return true;
  }

  MergedPart const& part_;
  Index first_;
  Index end_;
  std::function<void(MergedBlock const&)> const& take_;
  std::vector<Index> reach_;  ///< elements from a dimension's first to its last
};

/// Whether `inner` continues in steps of `outer`.
bool one_run(MergedDim const& outer, MergedDim const& inner) {
  return outer.stride == inner.count * inner.stride && outer.out == inner.count * inner.out &&
         outer.in == inner.count * inner.in && outer.pair == inner.count * inner.pair;
}

}  // namespace

bool nest(std::vector<MergedDim>& dims) {
  std::erase_if(dims, [](MergedDim const& dim) { return dim.count == 1; });
  std::ranges::sort(dims, std::greater{}, &MergedDim::stride);
  Index reach = 1;
  for (std::size_t d = dims.size(); d-- > 0;) {
    if (dims[d].stride < reach) return false;
    reach += (dims[d].count - 1) * dims[d].stride;
  }
  for (std::size_t d = dims.size(); d-- > 1;)
    if (one_run(dims[d - 1], dims[d])) {
      dims[d].count *= dims[d - 1].count;
      dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(d) - 1);
    }
  return true;
}

void for_each_block(MergedWeight const& weight, Index first, Index count,
                    std::function<void(MergedBlock const&)> const& take) {
  for (MergedPart const& part : weight.parts) Walk(part, first, first + count, take).run();
}

}  // namespace reshard
