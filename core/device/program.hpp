#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reshard {

/// The kinds of kernels.
enum class KernelKind : std::uint8_t {
  copy_runs,   ///< strided copies, run by run
  copy_tiles,  ///< strided copies that transpose dimensions, tile by tile
  convert,     ///< other dtypes and added constants
  dequantise,  ///< BF16 from codes and scales
  digest,      ///< CRC-64 shares of pieces
};

/// Threads of a block, for every kernel. The number of blocks follows from the work.
inline constexpr unsigned threads_per_block = 256;

/// One launch of a kernel: `descriptors` descriptors at byte `at` of a program, divided into the
/// work of `blocks` blocks.
struct Launch {
  KernelKind kind = KernelKind::copy_runs;
  std::uint8_t width = 0;  ///< the kernel's element size in bytes, if there is a variant for each
  std::uint32_t descriptors = 0;
  std::uint32_t blocks = 0;
  std::uint64_t at = 0;
  std::uint8_t variant = 0;  ///< the number of the kernel among those of the kind
};

/// The descriptors of one or more launches, as bytes without pointers: they may be copied to any
/// address that is a multiple of 16. Launches of one program may run at the same time: none reads
/// the output of another, unless the function that adds them states otherwise.
struct Program {
  std::vector<std::byte> bytes;
  std::vector<Launch> launches;
};

/// The addresses of a launch's descriptors and data. Offsets in descriptors count from `from` and
/// `to`, which may be the same memory.
struct LaunchPlaces {
  std::byte const* program = nullptr;
  std::byte const* from = nullptr;
  std::byte* to = nullptr;
};

/// Carries out a launch on the host with the functions of the kernels, thread by thread: slow, for
/// tests and for the emulated device.
void run_on_host(Launch const& launch, LaunchPlaces const& places);

}  // namespace reshard
