#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reshard {

/// What a kernel does with the descriptors that it is given.
enum class KernelKind : std::uint8_t {
  copy_runs,   ///< strided copies, run by run
  copy_tiles,  ///< strided copies that turn the order of dimensions around, tile by tile
  convert,     ///< other dtypes and added constants
  dequantise,  ///< BF16 from codes and scales
  digest,      ///< CRC-64 shares of pieces
};

/// Threads of a block, for every kernel. The number of blocks follows from the work.
inline constexpr unsigned threads_per_block = 256;

/// One start of a kernel: `descriptors` descriptors that lie at byte `at` of a program, cut into
/// the work of `blocks` blocks.
struct Launch {
  KernelKind kind = KernelKind::copy_runs;
  std::uint8_t width =
      0;  ///< the kernel's element size in bytes, where there is a variant for each
  std::uint32_t descriptors = 0;
  std::uint32_t blocks = 0;
  std::uint64_t at = 0;
  std::uint8_t variant = 0;  ///< which kernel of the kind, where there are several
};

/// The descriptors of one or more launches, as bytes that hold no pointers: they work wherever they
/// are copied to, from an address that is a multiple of 16 on. Launches of one program may run at
/// the same time: none needs what another writes, unless the one who adds says otherwise.
struct Program {
  std::vector<std::byte> bytes;
  std::vector<Launch> launches;
};

/// Where a launch finds its descriptors and its data. Offsets in descriptors count from `from` and
/// `to`, which may be the same memory.
struct LaunchPlaces {
  std::byte const* program = nullptr;
  std::byte const* from = nullptr;
  std::byte* to = nullptr;
};

/// Carries out a launch on the host with the very functions that the kernels are made of, thread by
/// thread: slow, for tests and for a device that is not there.
void run_on_host(Launch const& launch, LaunchPlaces const& places);

}  // namespace reshard
