// Measures the kernels of the device layer on the GPU of this machine.
//   gpu_bench [--payload MIB] [--passes N] [--seed S] [--emulated] [copies|values|pipeline …]
// Exit code: 0, 1 when a result is wrong, 77 without a GPU. A bar that is not reached is marked
// BELOW and is no failure of this program.

#include <cstdio>
#include <set>

#include "tests/gpu/bench.hpp"

namespace reshard::test {
namespace {

struct CommandLine {
  BenchOptions options;
  bool emulated = false;
  std::set<std::string> wanted;

  bool wants(char const* name) const { return wanted.empty() || wanted.contains(name); }
};

CommandLine read_command_line(int argc, char** argv) {
  CommandLine line;
  for (int a = 1; a < argc; ++a) {
    std::string const word = argv[a];
    bool const has_value = a + 1 < argc;
    if (word == "--payload" && has_value)
      line.options.payload = std::stoull(argv[++a]) << 20U;
    else if (word == "--passes" && has_value)
      line.options.passes = std::stoi(argv[++a]);
    else if (word == "--seed" && has_value)
      line.options.seed = std::stoull(argv[++a]);
    else if (word == "--emulated")
      line.emulated = true;
    else
      line.wanted.insert(word);
  }
  return line;
}

int run_benches(CommandLine const& line) {
  Testbed testbed(device_or_skip(line.emulated));
  BenchOptions options = line.options;
  std::printf("device: %s; random bytes from seed %llu\n", testbed.device().name().c_str(),
              static_cast<unsigned long long>(options.seed));
  // The slots take 16 times the payload.
  while (!line.emulated && options.payload > (1U << 20U) &&
         testbed.device().free_bytes() < 18 * options.payload)
    options.payload /= 2;
  print_row("bench", "random bytes that kernels read",
            fmt::format("{} slots in turn, {} MiB moved per pass, {} passes", Slots::count,
                        options.payload >> 20U, options.passes),
            "-");
  int failed = 0;
  auto const part = [&](char const* name, auto const& work) {
    if (!line.wants(name)) return;
    try {
      work();
    } catch (std::exception const& failure) {
      print_row("bench", name, failure.what(), "FAILED");
      ++failed;
    }
  };
  if (line.wants("copies") || line.wants("values")) {
    Slots slots(testbed, options);
    part("copies", [&] { bench_copies(testbed, slots, options); });
    part("values", [&] { bench_values(testbed, slots, options); });
  }
  part("pipeline", [&] { bench_pipeline(testbed, options); });
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace reshard::test

int main(int argc, char** argv) {
  try {
    return reshard::test::run_benches(reshard::test::read_command_line(argc, argv));
  } catch (std::exception const& failure) {
    reshard::test::print_row("bench", "gpu_bench", failure.what(), "FAILED");
    return 1;
  }
}
