#include <chrono>

#include "tests/core/containers/hdf5/container_files.hpp"

namespace reshard::hdf5 {
namespace {

TEST(Hdf5Finish, ChangesDigestsAndCompleteAndNothingElse) {
  ScratchFolder const folder("hdf5_finish");
  Sample const sample = small_sample();
  ContainerPlan const plan = sample.plan();
  auto const path = folder.path() / "x.h5";
  auto const digests = sample.write(path, plan);
  auto const before = bytes_of(path);
  sample.finish(path, digests);
  auto const after = bytes_of(path);
  ASSERT_EQ(after.size(), plan.size_bytes);
  ASSERT_EQ(before.size(), plan.size_bytes);
  std::size_t changed = 0;
  for (std::size_t i = 0; i < after.size(); ++i) changed += after[i] == before[i] ? 0U : 1U;
  EXPECT_GT(changed, 0U);
  EXPECT_LE(changed,
            digests.size() * (16 + 4) + 1 +
                8);  // digits and the checksum of each header; `complete` and its checksums
  for (auto const& [begin, end] : sample.ranges(plan))
    for (std::uint64_t at = begin; at < end; ++at) ASSERT_EQ(after[at], before[at]) << at;
}

TEST(Hdf5Finish, TwiceGivesTheSameBytes) {
  ScratchFolder const folder("hdf5_finish_twice");
  Sample const sample = small_sample();
  auto const path = folder.path() / "x.h5";
  auto const digests = sample.write_all(path);
  auto const once = bytes_of(path);
  sample.finish(path, digests);
  EXPECT_EQ(bytes_of(path), once);
  sample.write_all(folder.path() / "y.h5");
  EXPECT_EQ(bytes_of(folder.path() / "y.h5"), once);
}

TEST(Hdf5Finish, UnfinishedContainersAreRefused) {
  ScratchFolder const folder("hdf5_unfinished");
  Sample const sample = small_sample();
  auto const path = folder.path() / "x.h5";
  sample.write(path, sample.plan());
  expect_says(refusal([&] { read_file(path); }), {"3: ", "'complete' is 0, expected 1"});
}

TEST(Hdf5Finish, FiftyThousandDatasets) {
  ScratchFolder const folder("hdf5_finish_many");
  Sample sample;
  for (int i = 0; i < 50'000; ++i)
    sample.datasets.push_back(
        {fmt::format("layers.{}.experts.{}.w", i / 64, i % 64), DType::u8, {2, 5}, {"out", "in"}});
  auto const path = folder.path() / "x.h5";
  auto const digests = sample.write(path, sample.plan());
  auto const begin = std::chrono::steady_clock::now();
  sample.finish(path, digests);
  auto const middle = std::chrono::steady_clock::now();
  Found const found = read_file(path);
  auto const end = std::chrono::steady_clock::now();
  EXPECT_EQ(found.tensors.size(), 50'000U);
  using Seconds = std::chrono::duration<double>;
  fmt::print("50,000 datasets: finish {:.2f} s, read_file {:.2f} s\n",
             Seconds(middle - begin).count(), Seconds(end - middle).count());
}

}  // namespace
}  // namespace reshard::hdf5
