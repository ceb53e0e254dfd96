// The fuzz target on the corpus and on mutations of it with a fixed seed: what every build checks without libFuzzer.

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/dcp_metadata.hpp"
#include "tests/support/dcp_pickle.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace reshard {
namespace {

using namespace std::string_literals;

void run(std::string const& bytes) { LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size()); }

/// Files of torch itself (tests/fuzz/corpus/make_dcp_metadata.py) and hand-made ones.
std::vector<std::string> corpus() {
  std::vector<std::string> files = {raw::file_of(raw::Parts{}), dcp::write_metadata(banded_metadata(2, 3))};
  for (auto const& entry : std::filesystem::directory_iterator(std::filesystem::path(RESHARD_SOURCE_DIR) / "tests/fuzz/corpus/dcp_metadata"))
    files.push_back(read_text_file(entry.path(), 1 << 20));
  std::ranges::sort(files);
  return files;
}

/// Values and opcodes that fit where others were, so that many mutations reach the end of the pickle.
std::vector<std::string> const& pieces() {
  static std::vector<std::string> const all = {"N",
                                               "\x88",
                                               "K\0"s,
                                               "K\1",
                                               "M\xff\xff",
                                               "J\xff\xff\xff\xff",
                                               "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
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
                                               "\x87",
                                               "a",
                                               "s",
                                               "0",
                                               "1",
                                               "2",
                                               "R",
                                               "b",
                                               "\x81",
                                               "\x92",
                                               "\x94",
                                               "q\1",
                                               "h\0"s,
                                               "h\1",
                                               "h\5",
                                               "h\x20",
                                               ".",
                                               "\x93",
                                               raw::size({0, 0}),
                                               raw::size({2, 3}),
                                               raw::text("w"),
                                               raw::text("offsets"),
                                               raw::text("all_local_plans"),
                                               raw::global("torch", "Size"),
                                               raw::chunk(raw::size({0, 0}), raw::size({2, 3})),
                                               raw::index("w", raw::size({0, 0})),
                                               raw::place("__0_0.distcp", 0, 5),
                                               raw::bytes()};
  return all;
}

std::string mutated(std::string bytes, std::vector<std::string> const& files, std::mt19937_64& random) {
  for (std::uint64_t changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
    std::size_t const at = random() % bytes.size();
    std::string const& piece = pieces()[random() % pieces().size()];
    switch (random() % 8) {
      case 0: bytes[at] = static_cast<char>(random()); break;
      case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8)); break;
      case 2: bytes.resize(at); break;
      case 3: bytes.erase(at, random() % 16); break;
      case 4: bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 64)); break;
      case 5: bytes.insert(at, piece); break;
      case 6: bytes.replace(at, piece.size(), piece); break;
      default: {
        std::string const& other = files[random() % files.size()];
        bytes = bytes.substr(0, at) + other.substr(random() % other.size());
      }
    }
  }
  return bytes;
}

TEST(DcpMetadataFuzz, TheCorpusIsRead) {
  for (std::string const& file : corpus()) {
    run(file);
    EXPECT_FALSE(raw::error_of(file));
  }
}

TEST(DcpMetadataFuzz, MutationsOfTheCorpus) {
  std::vector<std::string> const files = corpus();
  std::mt19937_64 random(20240611);
  int read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string const bytes = mutated(files[random() % files.size()], files, random);
    read += round % 20 == 0 && !raw::error_of(bytes) ? 1 : 0;
    run(bytes);
  }
  EXPECT_GT(read, 10) << "too few mutations reach the end of the pickle";
}

TEST(DcpMetadataFuzz, RandomOpcodes) {
  std::mt19937_64 random(7);
  std::string const whole = raw::file_of(raw::Parts{});
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = round % 2 == 0 ? "\x80\x04" : whole.substr(0, random() % whole.size());
    for (std::uint64_t i = random() % 24; i > 0; --i) bytes += pieces()[random() % pieces().size()];
    run(bytes + ".");
  }
}

}  // namespace
}  // namespace reshard
