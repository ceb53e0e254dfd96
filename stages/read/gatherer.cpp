#include "stages/read/gatherer.hpp"

#include <algorithm>
#include <cstring>

namespace reshard {
namespace {

/// Bytes that one request brings.
constexpr std::size_t most_bytes = std::size_t{4} << 20;
/// Runs that are held before they are read, and that one request fills.
constexpr std::size_t most_runs = std::size_t{1} << 16;
constexpr std::size_t most_parts = 1024;
/// Shorter runs are read together and copied.
constexpr std::size_t short_bytes = 4096;

}  // namespace

void Gatherer::gather(GatheredTensor const& tensor, Index first, Index count, std::byte* into) {
  element_bytes_ = bits(tensor.dtype) / 8;
  first_ = first;
  end_ = first + count;
  into_ = into;
  for (GatheredPart const& part : tensor.parts) {
    reach_.assign(part.dims.size() + 1, 1);
    for (std::size_t d = part.dims.size(); d-- > 0;)
      reach_[d] = reach_[d + 1] + (part.dims[d].count - 1) * part.dims[d].dst_stride;
    if (part.first >= end_ || part.first + reach_.front() <= first_) continue;
    walk(part, 0, 0, part.first);
    flush(part.file);
  }
}

/// `from` and `to`: the element of the dimension's first index, counted from the part's first in
/// the file, and in the tensor.
void Gatherer::walk(GatheredPart const& part, std::size_t dim, Index from, Index to) {
  if (dim == part.dims.size()) {
    if (to >= first_ && to < end_) add(part, {1, 1, 1}, from, to, 1);
    return;
  }
  CopyDim const& here = part.dims[dim];
  Index const stride = here.dst_stride;
  Index const reach = reach_[dim + 1];
  // Indices that end behind the first wanted element, and begin before the last one's end.
  Index const begin = first_ < to + reach ? 0 : (first_ - to - reach) / stride + 1;
  Index const end = end_ <= to ? 0 : std::min(here.count, (end_ - to + stride - 1) / stride);
  if (begin >= end) return;
  if (dim + 1 == part.dims.size() && stride == 1)
    return add(part, here, from + begin * here.src_stride, to + begin, end - begin);
  for (Index i = begin; i < end; ++i)
    walk(part, dim + 1, from + i * here.src_stride, to + i * stride);
}

void Gatherer::add(GatheredPart const& part, CopyDim const& dim, Index from, Index to,
                   Index count) {
  bool const is_run = dim.src_stride == 1;
  Index const bytes = is_run ? count * element_bytes_ : element_bytes_;
  for (Index i = 0; i < (is_run ? 1 : count); ++i) {
    if (runs_.size() == most_runs) flush(part.file);
    runs_.push_back({part.offset_bytes +
                         static_cast<std::uint64_t>((from + i * dim.src_stride) * element_bytes_),
                     into_ + (to + i - first_) * element_bytes_, static_cast<std::size_t>(bytes)});
  }
}

/// Reads what is held of one file, neighbours of the file together.
void Gatherer::flush(std::uint32_t file) {
  std::ranges::sort(runs_, {}, &Run::from);
  for (std::size_t begin = 0; begin < runs_.size();) {
    std::size_t end = begin + 1;
    std::size_t bytes = runs_[begin].bytes;
    while (end < runs_.size() && end - begin < most_parts * 16 &&
           runs_[end].from == runs_[begin].from + bytes && bytes < most_bytes)
      bytes += runs_[end++].bytes;
    read_group(file, std::span(runs_).subspan(begin, end - begin), bytes);
    begin = end;
  }
  runs_.clear();
}

void Gatherer::read_group(std::uint32_t file, std::span<Run const> runs, std::size_t bytes) {
  parts_.clear();
  bool const is_short = runs.size() > 1 && bytes / runs.size() < short_bytes;
  if (is_short) {
    buffer_.resize(bytes);
    parts_.push_back({buffer_.data(), bytes});
  } else {
    for (Run const& run : runs) parts_.push_back({run.to, run.bytes});
  }
  read_(file, runs.front().from, parts_);
  if (!is_short) return;
  std::byte const* from = buffer_.data();
  for (Run const& run : runs) {
    std::memcpy(run.to, from, run.bytes);
    from += run.bytes;
  }
}

}  // namespace reshard
