#include <cstring>

#include "core/base/error.hpp"
#include "core/device/kernels/digest_pieces.hpp"
#include "core/device/kernels/host_runs.hpp"
#include "core/device/kernels/request_blocks.hpp"

namespace reshard {
namespace {

constexpr DigestTables tables = make_digest_tables();

void run_block(Launch const& launch, LaunchPlaces const& places, std::uint32_t block) {
  DigestDescriptor const& piece = descriptor_of_block(
      descriptors_of<DigestDescriptor>(launch, places), launch.descriptors, block);
  DigestShared shared;
  std::memset(&shared, 0xd6, sizeof shared);  // anything, when a block starts
  auto const each_thread = [](auto phase) {
    for (unsigned thread = 0; thread < threads_per_block; ++thread) phase(thread);
  };
  each_thread([&](unsigned thread) { digest_begin(tables, piece, shared, thread); });
  each_thread([&](unsigned thread) { digest_lanes(tables, piece, places, shared, block, thread); });
  each_thread([&](unsigned thread) { digest_teams(tables, piece, places, shared, block, thread); });
  each_thread([&](unsigned thread) { digest_gather(shared, thread); });
  std::uint64_t sum = 0;
  std::memcpy(&sum, places.to + piece.sum, sizeof sum);
  sum ^= digest_share(shared);
  std::memcpy(places.to + piece.sum, &sum, sizeof sum);
}

}  // namespace

void run_digest_on_host(Launch const& launch, LaunchPlaces const& places) {
  RESHARD_EXPECT(launch.kind == KernelKind::digest);
  for (std::uint32_t block = 0; block < launch.blocks; ++block) run_block(launch, places, block);
}

}  // namespace reshard
