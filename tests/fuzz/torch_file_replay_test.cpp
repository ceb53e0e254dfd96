// The fuzz target on the corpus and on mutations of it with a fixed seed: what every build checks without libFuzzer.

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/scratch_folder.hpp"
#include "tests/support/torch_file_bytes.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace reshard {
namespace {

using namespace std::string_literals;

void run(std::string const& bytes) { LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size()); }

/// Files of torch itself (tests/fuzz/corpus/make_torch_files.py) and hand-made ones.
std::vector<std::string> corpus() {
  std::vector<std::string> files = {bytes_of(torch_zip()), bytes_of(RawLegacy{}), pickle_of(pickled_tensor({}))};
  for (auto const& entry : std::filesystem::directory_iterator(std::filesystem::path(RESHARD_SOURCE_DIR) / "tests/fuzz/corpus/torch_file"))
    files.push_back(read_text_file(entry.path(), 1 << 20));
  std::ranges::sort(files);
  return files;
}

/// Numbers that sizes and counts go wrong at.
std::string interesting_number(std::mt19937_64& random) {
  constexpr std::uint64_t numbers[] = {0,      1,       0x7f,       0x80,       0xff,       0x100,       0x7fff,
                                       0xffff, 0x10000, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, ~std::uint64_t{0}};
  std::string const bytes = little_endian(numbers[random() % std::size(numbers)]);
  return bytes.substr(0, std::size_t{1} << random() % 4);
}

std::string mutated(std::string bytes, std::vector<std::string> const& files, std::mt19937_64& random) {
  auto const place = [&] { return bytes.empty() ? 0 : random() % bytes.size(); };
  for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
    std::size_t const at = place();
    switch (random() % 7) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2: bytes.resize(at); break;
      case 3: bytes.erase(at, random() % 16); break;
      case 4: bytes.insert(at, bytes.substr(place(), random() % 64)); break;
      case 5: {
        std::string const number = interesting_number(random);
        bytes.replace(at, number.size(), number);
        break;
      }
      default: {
        std::string const& other = files[random() % files.size()];
        bytes = bytes.substr(0, at) + other.substr(random() % other.size());
      }
    }
  }
  return bytes;
}

TEST(TorchFileFuzz, TheCorpusIsRead) {
  MemoryFile const memory;
  for (std::string const& file : corpus()) {
    run(file);
    EXPECT_TRUE(!error_of_file(memory, file) || !error_of_pickle(file));
  }
}

TEST(TorchFileFuzz, MutationsOfTheCorpus) {
  std::vector<std::string> const files = corpus();
  std::mt19937_64 random(20240611);
  for (int round = 0; round < 6000; ++round) run(mutated(files[random() % files.size()], files, random));
}

TEST(TorchFileFuzz, RandomOpcodes) {
  // Mostly well-formed: opcodes with operands that fit, so that many streams reach STOP.
  std::vector<std::string> const pieces = {"N",
                                           "\x88",
                                           "K\1",
                                           "](",
                                           ")",
                                           "}",
                                           "\x8f",
                                           "(",
                                           "e",
                                           "t",
                                           "u",
                                           "\x85",
                                           "\x86",
                                           "a",
                                           "s",
                                           "0",
                                           "1",
                                           "2",
                                           "R",
                                           "b",
                                           "\x81",
                                           "\x92",
                                           "\x90",
                                           "\x91",
                                           "Q",
                                           "l",
                                           "d",
                                           "q\0"s,
                                           "q\1",
                                           "h\0"s,
                                           "h\1",
                                           "\x94",
                                           "cm\nf\n",
                                           "c__builtin__\nset\n",
                                           "c_codecs\nencode\n",
                                           "ccollections\nOrderedDict\n",
                                           "ctorch._utils\n_rebuild_parameter\n",
                                           "ctorch._tensor\n_rebuild_from_type_v2\n",
                                           "\x93",
                                           pickled_string("latin1"),
                                           pickled_string("a.b"),
                                           pickled_tensor({}),
                                           pickled_storage({}),
                                           "G\0\0\0\0\0\0\0\0"s,
                                           "C\1z"};
  std::mt19937_64 random(7);
  int read = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string bytes = "]";
    for (std::uint64_t i = random() % 24; i > 0; --i) bytes += pieces[random() % pieces.size()];
    bytes += ".";
    read += error_of_pickle(bytes) ? 0 : 1;
    run(bytes);
  }
  EXPECT_GT(read, 500);
}

}  // namespace
}  // namespace reshard
