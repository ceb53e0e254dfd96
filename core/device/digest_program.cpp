#include "core/device/digest_program.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/tables/integers.hpp"
#include "core/device/copy_shape.hpp"
#include "core/device/kernels/digest_pieces.hpp"
#include "core/device/program_writer.hpp"
#include "core/device/strided_digest.hpp"

namespace reshard {
namespace {

// A thread has at least this many bytes of a long run: moving its remainder to its place costs
// about as much as 60 bytes, and as much again for each team.
constexpr std::uint64_t lane_bytes = 512;
constexpr std::uint64_t longest_stretch = 2 * lane_bytes << most_lane_bits;

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

/// The bytes of the tensor behind a run at byte `at` of it.
std::uint64_t bytes_after(DigestRequest const& piece) {
  RESHARD_EXPECT(piece.at <= piece.tensor_bytes &&
                 piece.run_bytes <= piece.tensor_bytes - piece.at && piece.sum % 8 == 0);
  return piece.tensor_bytes - piece.at - piece.run_bytes;
}

DigestDescriptor descriptor_of(DigestRequest const& piece, CopyShape const& shape) {
  std::uint64_t runs = 1;
  for (ByteDim const& dim : shape.dims) runs *= dim.count;
  // `after` of the piece counts behind its own runs; those of the simplified shape begin at the
  // same place and are longer.
  DigestDescriptor descriptor{.from = piece.from,
                              .after = bytes_after(piece) - (shape.run_bytes - piece.run_bytes),
                              .run_bytes = shape.run_bytes,
                              .sum = piece.sum,
                              .dims = narrow<std::uint32_t>(shape.dims.size())};
  std::uint64_t const lanes =
      std::clamp<std::uint64_t>(shape.run_bytes / lane_bytes, 1, 1U << most_lane_bits);
  descriptor.lane_bits = static_cast<std::uint32_t>(std::bit_width(lanes) - 1);
  // Stretches of equal length, a multiple of 16 bytes.
  descriptor.stretch_bytes =
      ceil_div(ceil_div(shape.run_bytes, ceil_div(shape.run_bytes, longest_stretch)), 16) * 16;
  descriptor.stretches_of_run = ceil_div(shape.run_bytes, descriptor.stretch_bytes);
  descriptor.stretches = runs * descriptor.stretches_of_run;
  return descriptor;
}

}  // namespace

void add_digests(Program& program, std::span<DigestRequest const> pieces) {
  std::vector<DigestDescriptor> descriptors;
  std::uint64_t blocks = 0;
  for (DigestRequest const& piece : pieces) {
    CopyShape const shape = digest_shape(piece.run_bytes, piece.dims);
    if (shape.run_bytes == 0) continue;
    DigestDescriptor descriptor = descriptor_of(piece, shape);
    descriptor.dims_at = append_descriptors(program, std::span<ByteDim const>(shape.dims));
    descriptor.first_block = blocks;
    blocks += ceil_div(descriptor.stretches << descriptor.lane_bits, threads_per_block);
    descriptors.push_back(descriptor);
  }
  if (descriptors.empty()) return;
  std::uint64_t const at =
      append_descriptors(program, std::span<DigestDescriptor const>(descriptors));
  program.launches.push_back({.kind = KernelKind::digest,
                              .descriptors = narrow<std::uint32_t>(descriptors.size()),
                              .blocks = block_count(blocks),
                              .at = at});
}

}  // namespace reshard
