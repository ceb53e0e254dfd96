// Puts the name of the test that runs into the environment, for record_refusal() and for programs
// that the test starts.

#include <cstdlib>

#include <gtest/gtest.h>

namespace {

class TestName : public testing::EmptyTestEventListener {
  void OnTestStart(testing::TestInfo const& test) override {
    std::string const name = std::string(test.test_suite_name()) + "." + test.name();
    ::setenv("RESHARD_REFUSALS_OF", name.c_str(), 1);
  }
};

bool const is_added = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new TestName);  // owned by GoogleTest
  return true;
}();

}  // namespace
