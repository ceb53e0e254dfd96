#include "stages/verify/scans/scan_digest.hpp"

#include <algorithm>

#include "core/base/hash/crc64.hpp"
#include "core/device/state_digest.hpp"
#include "core/device/strided_copy.hpp"
#include "core/device/strided_digest.hpp"

namespace reshard {
namespace {

// Longer runs are not worth a copy, and neither is one that does not make them several times as
// long.
constexpr std::uint64_t short_run_bytes = 128;
constexpr std::uint64_t enough_longer = 4;

/// How long runs are when they are in the tensor's order; `dims` ascend by to_stride.
std::uint64_t run_in_tensor(std::uint64_t run_bytes, std::span<ByteDim const> dims) {
  for (ByteDim const& dim : dims)
    if (dim.to_stride == static_cast<std::int64_t>(run_bytes)) run_bytes *= dim.count;
  return run_bytes;
}

}  // namespace

std::uint64_t BlockDigest::share(ScanBlock const& block, std::span<ByteDim const> dims,
                                 std::byte const* from) {
  auto const as_it_is = [&] {
    return strided_digest(from, block.run_bytes, dims, block.after_bytes);
  };
  if (block.run_bytes >= short_run_bytes || dims.empty()) return as_it_is();
  std::vector<ByteDim> copy(dims.begin(), dims.end());
  std::sort(copy.begin(), copy.end(),
            [](ByteDim const& a, ByteDim const& b) { return a.to_stride < b.to_stride; });
  std::uint64_t const bytes = copied_bytes(block.run_bytes, dims);
  bool const repeats = bytes > block.end - block.begin;
  if (repeats || run_in_tensor(block.run_bytes, copy) < enough_longer * block.run_bytes)
    return as_it_is();

  std::vector<ByteDim> packed = copy;  // from packed_ to the tensor
  std::uint64_t stride = block.run_bytes;
  for (std::size_t d = 0; d < copy.size(); stride *= copy[d++].count)
    packed[d].from_stride = copy[d].to_stride = static_cast<std::int64_t>(stride);
  std::reverse(copy.begin(), copy.end());
  std::reverse(packed.begin(), packed.end());
  packed_.resize(std::max<std::size_t>(packed_.size(), bytes));
  copy_strided(from, packed_.data(), block.run_bytes, copy);
  return strided_digest(packed_.data(), block.run_bytes, packed, block.after_bytes);
}

std::uint64_t BlockDigest::share(PieceShare const& piece, ScanBlock const& block,
                                 std::span<ByteDim const> dims, std::byte const* from) {
  switch (piece.kind) {
    case ShareKind::bytes: break;
    case ShareKind::rounded:
      return rounded_digest(piece.dtype, from, block.run_bytes, dims, block.after_bytes, packed_);
    case ShareKind::moments:
      // A nonzero number that differs between blocks, as they are combined by xor.
      return wrong_moment(from, block.run_bytes, dims) ? crc64_power(block.after_bytes + 1) : 0;
  }
  return share(block, dims, from);
}

}  // namespace reshard
