// How ranges of bytes are cut into elements of datasets. What the ranks write is tested in
// tests/stages/write/hdf5_sink_test.cpp.

#include "core/containers/hdf5/parallel_writer.hpp"

#include "core/transport/comm.hpp"
#include "tests/core/containers/hdf5/container_files.hpp"

namespace reshard::hdf5 {
namespace {

namespace fs = std::filesystem;

/// Two small neighbours, an empty dataset, one that begins at the alignment, and an object.
class ParallelWriterOnRanks : public ::testing::Test {
 protected:
  Sample const sample_ = {.datasets = {{"a", DType::f64, {3, 5}},
                                       {"b", DType::f64, {4}},
                                       {"none", DType::f32, {0, 4}},
                                       {"large", DType::bf16, {50'000}}},
                          .objects = {{"o", 24}},
                          .attributes = {}};
  ContainerPlan const plan_ = sample_.plan();
  Comm const world_ = Comm::world();
  fs::path const path_ = fs::temp_directory_path() /
                         world_.broadcast(fmt::format("parallel_writer_{}.h5", ::getpid()), 0);
  std::vector<std::byte> const bytes_ = std::vector<std::byte>(200'000);

  void SetUp() override {
    if (world_.rank() == 0) sample_.write(path_, plan_);
    world_.barrier();
  }
  void TearDown() override {
    world_.barrier();
    if (world_.rank() == 0) fs::remove(path_);
  }
  std::span<std::byte const> some(std::uint64_t count) const {
    return std::span(bytes_).first(count);
  }
};

TEST_F(ParallelWriterOnRanks, CutsAtBordersAndAtTheLargestPiece) {
  ParallelWriter writer(std::span(&path_, 1), world_.handle(), Transfer::independent);
  std::uint64_t const a = plan_.offset_bytes[0];
  ASSERT_EQ(plan_.offset_bytes[1], a + 120) << "neighbours";
  auto const both = writer.pieces(0, a + 16, some(120));
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(both[0].first_element, 2U);
  EXPECT_EQ(both[0].elements, 13U);
  EXPECT_EQ(both[0].from, bytes_.data());
  EXPECT_EQ(both[1].dataset, both[0].dataset + 1);
  EXPECT_EQ(both[1].first_element, 0U);
  EXPECT_EQ(both[1].elements, 2U);
  EXPECT_EQ(both[1].from, bytes_.data() + 104);
  auto const cut = writer.pieces(0, plan_.offset_bytes[3], some(100'000), 30'001);
  ASSERT_EQ(cut.size(), 4U);
  EXPECT_EQ(cut[0].elements, 15'000U);
  EXPECT_EQ(cut[3].first_element, 45'000U);
  EXPECT_EQ(cut[3].elements, 5'000U);
  EXPECT_EQ(writer.pieces(0, plan_.object_offset_bytes[0], some(24)).size(), 1U);
  EXPECT_TRUE(writer.pieces(0, a, some(0)).empty());
  writer.close();
}

TEST_F(ParallelWriterOnRanks, RefusesBytesOfNoDatasetAndPartsOfElements) {
  ParallelWriter writer(std::span(&path_, 1), world_.handle(), Transfer::independent);
  std::uint64_t const large = plan_.offset_bytes[3];
  for (auto const& [offset, count] : {std::pair{large - 8, 8U},
                                      {large + 99'990, 20U},
                                      {std::uint64_t{0}, 8U},
                                      {plan_.size_bytes, 1U},
                                      {plan_.offset_bytes[0] + 4, 8U},
                                      {plan_.offset_bytes[0], 12U}})
    EXPECT_TRUE(refusal([&] { writer.pieces(0, offset, some(count)); }).starts_with("70: "))
        << offset << " " << count;
  EXPECT_TRUE(
      refusal([&] { writer.pieces(1, plan_.offset_bytes[0], some(8)); }).starts_with("70: "));
  writer.close();
}

TEST_F(ParallelWriterOnRanks, AFileThatIsNoneIsAnErrorOfIo) {
  fs::path const missing = path_.string() + ".missing";
  std::string const said = refusal(
      [&] { ParallelWriter(std::span(&missing, 1), world_.handle(), Transfer::independent); });
  expect_says(said, {"5: ", missing.string(), "libhdf5 cannot open it"});
}

}  // namespace
}  // namespace reshard::hdf5

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
