#include "core/transport/transports.hpp"

#include <set>

#include <gtest/gtest.h>

namespace reshard {
namespace {

TEST(Transports, EachHasANameOfItsOwnAndSaysWhatItNeeds) {
  std::set<std::string_view> names;
  for (TransportKind const& kind : transports()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_FALSE(kind.needs.empty()) << kind.name;
    EXPECT_EQ(&transport_named(kind.name), &kind);
  }
  EXPECT_EQ(names, (std::set<std::string_view>{"mpi", "nccl"})) << "as run.transport has them";
}

TEST(Transports, AnUnknownNameIsABug) {
  try {
    transport_named("pigeon");
    FAIL() << "no error";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
  }
}

TEST(Transports, OnlyThatOfGpusTakesAStream) {
  EXPECT_FALSE(transport_named("mpi").takes_stream);
  EXPECT_TRUE(transport_named("nccl").takes_stream);
}

}  // namespace
}  // namespace reshard
