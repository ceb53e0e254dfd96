#include "tests/core/containers/hdf5/container_files.hpp"

namespace reshard::hdf5 {
namespace {

TEST(NoHdf5, IsSaidByEveryCall) {
  std::string const planned = refusal([] { plan_container({}, {}, {}); });
  std::string const finished = refusal([] { finished_frame({}, {}, {}, {}); });
  std::string const read = refusal([] { read_file("x.h5"); });
  for (std::string const& said : {planned, finished, read}) {
    EXPECT_TRUE(said.starts_with("2: ")) << said;
    EXPECT_NE(said.find("this build has no HDF5"), std::string::npos) << said;
  }
  EXPECT_TRUE(read.starts_with("2: x.h5")) << read;
}

}  // namespace
}  // namespace reshard::hdf5
