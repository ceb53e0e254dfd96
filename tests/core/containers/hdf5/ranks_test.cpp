// Every rank plans, one finishes, all read in children of theirs while MPI is at work; then MPI
// must still work, and end.

#include "core/transport/comm.hpp"
#include "tests/core/containers/hdf5/container_files.hpp"

namespace reshard::hdf5 {
namespace {

TEST(Hdf5OnRanks, PlansAreEqualAndEveryRankReads) {
  Comm const world = Comm::world();
  std::string const name = world.broadcast(fmt::format("hdf5_ranks_{}", ::getpid()), 0);
  auto const path = std::filesystem::temp_directory_path() / (name + ".h5");
  Sample const sample = small_sample();
  ContainerPlan const plan = sample.plan();
  std::string bytes;
  for (FileSegment const& piece : plan.frame)
    bytes += fmt::format("{} {} ", piece.offset_bytes, piece.bytes);
  for (std::string const& other : world.all_gather(bytes)) EXPECT_TRUE(other == bytes);
  if (world.rank() == 0) sample.write_all(path);
  world.barrier();
  for (int i = 0; i < 5; ++i) {
    std::string const mine = pack(read_file(path));
    for (std::string const& other : world.all_gather(mine)) {
      EXPECT_TRUE(other == mine);
      EXPECT_EQ(unpack(other).tensors.size(), sample.datasets.size());
    }
  }
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove(path);
}

}  // namespace
}  // namespace reshard::hdf5

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
