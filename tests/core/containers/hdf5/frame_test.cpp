#include "core/containers/hdf5/frame.hpp"

#include "tests/core/containers/hdf5/container_files.hpp"
#include "tests/support/failing_call.hpp"

namespace reshard::hdf5 {
namespace {

using Pieces = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // offset and bytes

void write_ones(SparseMemory const& memory, std::uint64_t begin, std::uint64_t end) {
  std::string const ones(end - begin, '\1');
  File::open_for_writing(memory.path()).write_at(begin, std::as_bytes(std::span(ones)));
}

Pieces pieces_of(SparseMemory const& memory, std::vector<ByteRange> const& datasets) {
  Pieces pieces;
  for (FileSegment const& piece : memory.written_outside(datasets))
    pieces.emplace_back(piece.offset_bytes, piece.bytes.size());
  return pieces;
}

TEST(Hdf5Frame, LeavesOutWhatLiesInDatasets) {
  SparseMemory const memory;
  write_ones(memory, 0, 20'000);
  EXPECT_EQ(pieces_of(memory, {}), (Pieces{{0, 20'000}}));
  EXPECT_EQ(pieces_of(memory, {{5000, 9000}, {100, 200}}),
            (Pieces{{0, 100}, {200, 4800}, {9000, 11'000}}));
  EXPECT_EQ(pieces_of(memory, {{0, 4096}, {4096, 8192}, {19'999, 20'000}}),
            (Pieces{{8192, 11'807}}));
  EXPECT_EQ(pieces_of(memory, {{0, 30'000}}), Pieces{});
}

TEST(Hdf5Frame, JoinsOverFewZerosButNotOverADataset) {
  SparseMemory const memory;
  write_ones(memory, 90, 100);
  write_ones(memory, 210, 220);
  write_ones(memory, 100'000, 100'001);
  EXPECT_EQ(pieces_of(memory, {}), (Pieces{{90, 130}, {100'000, 1}}));
  EXPECT_EQ(pieces_of(memory, {{100, 200}}), (Pieces{{90, 10}, {210, 10}, {100'000, 1}}));
  EXPECT_EQ(pieces_of(memory, {{99'000, 100'000}, {230, 99'000}}),
            (Pieces{{90, 130}, {100'000, 1}}));
}

TEST(Hdf5Frame, HolesTakeNoTime) {
  SparseMemory const memory;
  write_ones(memory, 10, 11);
  write_ones(memory, std::uint64_t{1} << 43U, (std::uint64_t{1} << 43U) + 1);
  EXPECT_EQ(pieces_of(memory, {{4096, std::uint64_t{1} << 42U}}),
            (Pieces{{10, 1}, {std::uint64_t{1} << 43U, 1}}));
}

TEST(Hdf5Frame, FailuresOfTheSystemAreErrors) {
  SparseMemory const memory;
  write_ones(memory, 0, 20'000);
  auto const read = [&] { memory.written_outside({}); };
  expect_says(test::refused_without(SYS_pread64, EIO, read), {"in memory: read failed: "});
  expect_says(test::refused_without(SYS_lseek, EIO, read), {"in memory: lseek failed: "});
}

}  // namespace
}  // namespace reshard::hdf5
