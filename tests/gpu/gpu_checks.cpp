// Checks of the device layer on the GPU of this machine against brute force on the host.
//   gpu_checks [--cases N] [--seed S] [--small] [--emulated] [NAME…]
// Exit code: 0, 1 when a check failed, 77 without a GPU. With --emulated it checks itself on a
// device that is not there.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <set>

#include "core/base/error.hpp"
#include "tests/gpu/gpu_checks.hpp"

namespace reshard::test {
namespace {

struct CommandLine {
  CheckOptions options;
  bool emulated = false;
  std::set<std::string> wanted;
};

CommandLine read_command_line(int argc, char** argv) {
  CommandLine line;
  for (int a = 1; a < argc; ++a) {
    std::string const word = argv[a];
    bool const has_value = a + 1 < argc;
    if (word == "--cases" && has_value)
      line.options.cases = std::stoull(argv[++a]);
    else if (word == "--seed" && has_value)
      line.options.first_seed = std::stoull(argv[++a]);
    else if (word == "--small")
      line.options.small = true;
    else if (word == "--emulated")
      line.emulated = true;
    else
      line.wanted.insert(word);
  }
  return line;
}

/// Whether it held.
bool run_check(Check const& check, Testbed& testbed, CheckOptions const& options) {
  auto const begin = std::chrono::steady_clock::now();
  std::string result;
  bool held = false;
  try {
    result = check.run(testbed, options);
    held = true;
  } catch (std::exception const& failure) {
    result = failure.what();
  }
  double const seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print_row("checks", check.name, fmt::format("{}; {:.1f} s", result, seconds),
            !held                            ? "FAILED"
            : result.starts_with("left out") ? "left out"
                                             : "ok");
  return held;
}

int run_checks(CommandLine const& line) {
  Testbed testbed(device_or_skip(line.emulated));
  std::printf("device: %s, random cases from seed %llu\n", testbed.device().name().c_str(),
              static_cast<unsigned long long>(line.options.first_seed));
  int failed = 0;
  std::size_t run = 0;
  for (auto const& part : {copy_checks(), value_checks(), digest_checks(), device_checks()})
    for (Check const& check : part) {
      if (!line.wanted.empty() && !line.wanted.contains(check.name)) continue;
      ++run;
      if (!run_check(check, testbed, line.options)) ++failed;
    }
  if (run == 0) {
    std::printf("no check has such a name\n");
    return 2;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace reshard::test

int main(int argc, char** argv) {
  try {
    if (argc == 2 && std::strcmp(argv[1], reshard::test::after_device_error_argument) == 0)
      return reshard::test::check_after_device_error();
    return reshard::test::run_checks(reshard::test::read_command_line(argc, argv));
  } catch (std::exception const& failure) {
    reshard::test::print_row("checks", "gpu_checks", failure.what(), "FAILED");
    return 1;
  }
}
