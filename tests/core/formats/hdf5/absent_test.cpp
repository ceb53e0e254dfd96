#include "tests/core/formats/hdf5/container_files.hpp"

namespace reshard::hdf5 {
namespace {

TEST(NoHdf5, IsSaidByEveryCall) {
  expect_says(refusal([] { plan_container({}, {}, {}); }), {"2: ", "this build has no HDF5"});
  expect_says(refusal([] { finished_frame({}, {}, {}, {}); }), {"2: ", "this build has no HDF5"});
  expect_says(refusal([] { read_file("x.h5"); }), {"2: x.h5", "this build has no HDF5"});
}

}  // namespace
}  // namespace reshard::hdf5
