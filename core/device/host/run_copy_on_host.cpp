#include <array>
#include <cstddef>

#include "core/base/error.hpp"
#include "core/device/kernels/copy_host.hpp"
#include "core/device/kernels/copy_variants.hpp"
#include "core/device/kernels/host_runs.hpp"

namespace reshard {
namespace {

// Shared memory holds anything when a block starts.
constexpr std::byte left_over{0xD6};

template <class Kernel>
void run_block(Kernel, CopyWork const& work, std::uint32_t block) {
  for (std::uint32_t thread = 0; thread < threads_per_block; ++thread)
    Kernel::run(work, block, thread);
}

template <unsigned Width, unsigned Pack>
void run_block(CopyTiles<Width, Pack>, CopyWork const& work, std::uint32_t block) {
  alignas(16) std::array<std::byte, tile_memory> memory;
  memory.fill(left_over);
  for (std::uint32_t thread = 0; thread < threads_per_block; ++thread)
    CopyTiles<Width, Pack>::load(work, tile_of(work, block), memory.data(), thread);
  for (std::uint32_t thread = 0; thread < threads_per_block; ++thread)
    CopyTiles<Width, Pack>::store(work, tile_of(work, block), memory.data(), thread);
}

}  // namespace

void run_copy_blocks_on_host(Launch const& launch, LaunchPlaces const& places, std::uint32_t first,
                             std::uint32_t end) {
  CopyWork const work = copy_work(launch, places);
  auto const run = [&](auto kernel) {
    for (std::uint32_t block = first; block < end; ++block) run_block(kernel, work, block);
  };
  bool const known =
      launch.kind == KernelKind::copy_tiles ? visit_tiles(launch, run) : visit_runs(launch, run);
  RESHARD_EXPECT(known);
}

void run_copy_on_host(Launch const& launch, LaunchPlaces const& places) {
  run_copy_blocks_on_host(launch, places, 0, launch.blocks);
}

}  // namespace reshard
