// A fuzz target on its corpus, and on mutations of it with a fixed seed: what every build checks,
// without libFuzzer. Which target it is, the program's name says: json_replay_test reads
// corpus/json.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);
extern "C" [[gnu::weak]] std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                                             std::size_t most, unsigned seed);

namespace reshard::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t largest_input_bytes = 1 << 16;
constexpr int rounds = 400;

std::minstd_rand& random_numbers() {
  static std::minstd_rand numbers(20240611);
  return numbers;
}

std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_numbers()() % limit; }

struct Input {
  std::string name;
  std::string bytes;
};

/// Real files that the parser accepts, hand-made ones, and what the fuzzer found ("found-…"), which
/// may be refused.
std::vector<Input> corpus() {
  constexpr std::string_view ending = "_replay_test";
  std::string target = fs::read_symlink("/proc/self/exe").filename().string();
  if (target.ends_with(ending)) target.resize(target.size() - ending.size());
  std::vector<Input> inputs;
  for (auto const& entry :
       fs::directory_iterator(fs::path(RESHARD_SOURCE_DIR) / "tests/fuzz/corpus" / target))
    inputs.push_back(
        {entry.path().filename().string(), read_text_file(entry.path(), largest_input_bytes)});
  std::ranges::sort(inputs, {}, &Input::name);
  return inputs;
}

/// Whether the target's parser accepted it.
bool run(std::string const& bytes) {
  std::uint64_t const before = accepted_inputs;
  LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size());
  return accepted_inputs != before;
}

std::string mutated(std::string const& bytes, std::vector<Input> const& inputs) {
  std::string room = bytes;
  if (below(8) == 0) room.resize(below(room.size() + 1));
  if (below(8) == 0) {
    std::string const& other = inputs[below(inputs.size())].bytes;
    room += other.substr(below(other.size() + 1));
  }
  std::size_t const size = std::min(room.size(), largest_input_bytes);
  room.resize(largest_input_bytes);
  auto* const data = reinterpret_cast<std::uint8_t*>(room.data());
  auto const seed = static_cast<unsigned>(random_numbers()());
  room.resize(LLVMFuzzerCustomMutator != nullptr
                  ? LLVMFuzzerCustomMutator(data, size, largest_input_bytes, seed)
                  : LLVMFuzzerMutate(data, size, largest_input_bytes));
  return room;
}

TEST(Replay, RealFilesAreAccepted) {
  std::vector<Input> const inputs = corpus();
  ASSERT_FALSE(inputs.empty());
  for (auto const& [name, bytes] : inputs) {
    bool const accepted = run(bytes);
    EXPECT_TRUE(accepted || name.starts_with("found-")) << name;
  }
}

TEST(Replay, MutationsEndInAnErrorOrAreAccepted) {
  std::vector<Input> const inputs = corpus();
  int accepted = 0;
  for (int round = 0; round < rounds; ++round)
    accepted += run(mutated(inputs[below(inputs.size())].bytes, inputs)) ? 1 : 0;
  EXPECT_GT(accepted, 0) << "no mutation gets past the parser: what is behind it is not tested";
}

}  // namespace
}  // namespace reshard::fuzz

/// libFuzzer's own, in a few words.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most) {
  using reshard::fuzz::below;
  constexpr std::uint64_t numbers[] = {0,          1,           0x7f,      0x80,       0xff,
                                       0x100,      0x7fff,      0xffff,    0x7fffffff, 0x80000000,
                                       0xffffffff, 0x100000000, UINT64_MAX};
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
    std::size_t const at = below(size + 1);
    switch (below(4)) {
      case 0:
        if (at < size) data[at] = static_cast<std::uint8_t>(below(256));
        break;
      case 1:
        if (at < size) data[at] = static_cast<std::uint8_t>(data[at] ^ 1U << below(8));
        break;
      case 2: {
        std::size_t const count = std::min<std::size_t>(std::size_t{1} << below(4), size - at);
        std::memcpy(data + at, &numbers[below(std::size(numbers))], count);
        break;
      }
      default: {
        std::size_t const count = std::min<std::size_t>(below(16), size - at);
        bool const grows = below(2) == 0 && count <= most - size;
        std::memmove(data + at + (grows ? count : 0), data + at + (grows ? 0 : count),
                     size - at - (grows ? 0 : count));
        size += grows ? count : -count;
      }
    }
  }
  return size;
}
