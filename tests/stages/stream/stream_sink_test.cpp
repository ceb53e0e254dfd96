// What stream() asks of a sink whose ranks act together.

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "stages/stream/stream.hpp"

namespace reshard {
namespace {

/// Takes longer to finish than a stall may last, in steps that other ranks make it take.
class PatientSink : public ExtentSink {
 public:
  void write(std::span<Extent const>, std::byte*) override {}
  void finish() override {
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ++steps_;
    }
    finished_ = true;
  }
  std::uint64_t steps() const override { return steps_; }
  WriteStats const& stats() const override { return stats_; }
  std::string_view mode_name() const override { return "patient"; }
  bool finished() const { return finished_; }

 private:
  std::atomic<std::uint64_t> steps_ = 0;
  std::atomic<bool> finished_ = false;
  WriteStats stats_;
};

TEST(StreamSink, IsNotStalledWhileItTakesSteps) {
  FileSet sources({}, FileSet::Access::read);
  PatientSink sink;
  StreamOptions options;
  options.memory_bytes = 1U << 20;
  options.exchanging = true;
  options.stall_timeout_seconds = 0.8;
  stream(Comm::world(), options, sources, sink, [] { return std::optional<RoundWork>(); });
  EXPECT_TRUE(sink.finished());
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
