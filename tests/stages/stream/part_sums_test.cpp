#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/hash/crc64.hpp"
#include "core/transport/comm.hpp"
#include "stages/stream/part_sums.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t part_bytes = 96;
constexpr std::uint64_t parts = 5;

std::vector<std::byte> some_bytes() {
  std::vector<std::byte> bytes(part_bytes * parts);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 7);
  std::copy_n(bytes.begin() + part_bytes, part_bytes, bytes.begin() + 3 * part_bytes);
  std::fill_n(bytes.begin() + 2 * part_bytes, part_bytes, std::byte{0});
  return bytes;
}

/// The sums that parts of rounds give, each rank doing some of them.
std::vector<PartSum> sums_of(std::vector<DigestPart> const& rounds, Comm const& comm) {
  std::vector<std::byte> const bytes = some_bytes();
  PartSums sums({{1, 0}, {part_bytes, parts}});
  std::uint64_t share = 0;
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    DigestPart part = rounds[r];
    part.digest = DigestId{1};
    part.tensor_bytes = bytes.size();
    if (static_cast<int>(r) % comm.size() == comm.rank()) share ^= sums.add(part, bytes.data());
  }
  comm.xor_all(std::span(&share, 1));
  EXPECT_EQ(share, crc64(bytes));
  EXPECT_EQ(sums.first_part(DigestId{1}), 0U);
  return sums.merged(comm);
}

void expect_parts(std::vector<DigestPart> const& rounds) {
  std::vector<std::byte> const bytes = some_bytes();
  std::vector<PartSum> const found = sums_of(rounds, Comm::world());
  ASSERT_EQ(found.size(), parts);
  for (PartSum const& one : found) {
    EXPECT_EQ(one.bytes, part_bytes);
    EXPECT_EQ(one.crc64, crc64(std::span(bytes).subspan(one.number * part_bytes, part_bytes)));
  }
  EXPECT_EQ(found[1].crc64, found[3].crc64);
  EXPECT_EQ(found[2].crc64, 0U);
}

DigestPart run(std::uint64_t at, std::uint64_t bytes) {
  DigestPart part;
  part.from = part.at = at;
  part.run_bytes = bytes;
  return part;
}

TEST(PartSums, RunsAreCutAtPartsOfTheTensor) {
  expect_parts({run(0, part_bytes * parts)});
  expect_parts({run(0, 40), run(40, 200), run(240, 240)});
}

TEST(PartSums, BlocksThatLeadThroughSeveralPartsAreCut) {
  DigestPart columns = run(0, 8);  // of rows of 16 bytes, in all parts
  columns.dims = {{part_bytes * parts / 16, 16, 16}};
  DigestPart others = columns;
  others.from = others.at = 8;
  expect_parts({columns, others});
  DigestPart backwards = columns;
  backwards.from = backwards.at = part_bytes * parts - 16;
  backwards.dims = {{part_bytes * parts / 16, -16, -16}};
  expect_parts({backwards, others});
  DigestPart two = run(0, 8);  // two dimensions, the inner one across the border of parts
  two.dims = {{2, 8, 8}, {part_bytes * parts / 16, 16, 16}};
  expect_parts({two});
}

TEST(PartSums, WhatWasNotReadIsNotComplete) {
  std::vector<std::byte> const bytes = some_bytes();
  PartSums sums({{1, 0}, {part_bytes, parts}});
  DigestPart part = run(part_bytes, part_bytes + 8);
  part.digest = DigestId{1};
  part.tensor_bytes = bytes.size();
  Comm const comm = Comm::world();
  if (comm.rank() == 0) sums.add(part, bytes.data());
  std::vector<PartSum> const found = sums.merged(comm);
  EXPECT_EQ(found[0].bytes, 0U);
  EXPECT_EQ(found[1].bytes, part_bytes);
  EXPECT_EQ(found[2].bytes, 8U);
  part.digest = DigestId{0};  // a tensor without parts has its share alone
  EXPECT_EQ(sums.add(part, bytes.data()),
            crc64_shifted(crc64(std::span(bytes).subspan(part.at, part.run_bytes)),
                          bytes.size() - part.at - part.run_bytes));
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
