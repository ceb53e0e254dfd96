#include "core/device/digest_program.hpp"

#include <algorithm>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/device/kernels/host_runs.hpp"
#include "core/device/strided_copy.hpp"
#include "core/device/strided_digest.hpp"
#include "tests/support/digest_cases.hpp"

namespace reshard {
namespace {

using test::DeviceCase;
using test::DigestCase;
using test::OwnedPiece;

std::vector<std::byte> result_of(DeviceCase const& device) {
  std::vector<std::byte> to = device.to;
  for (Launch const& launch : device.program.launches)
    run_digest_on_host(launch, {device.program.bytes.data(), device.from.data(), to.data()});
  return to;
}

std::uint64_t host_share(OwnedPiece const& piece, std::vector<std::byte> const& memory) {
  return strided_digest(memory.data() + piece.from, piece.run_bytes, piece.dims,
                        piece.tensor_bytes - piece.at - piece.run_bytes);
}

/// Both the kernel and the host's function.
void expect_shares(DigestCase const& digest) {
  ASSERT_EQ(result_of(digest.device), digest.device.wanted) << digest.device.name;
  for (std::size_t p = 0; p < digest.pieces.size(); ++p)
    ASSERT_EQ(host_share(digest.pieces[p], digest.device.from), digest.shares[p])
        << digest.device.name << ", piece " << p;
}

TEST(Digest, RandomPiecesInAnyOrderMakeTheTensor) {
  std::uint64_t const first_seed = std::random_device{}();
  for (std::uint64_t seed = first_seed; seed < first_seed + 400; ++seed) {
    DigestCase const digest = test::random_digest_case(seed);
    ASSERT_NO_FATAL_FAILURE(expect_shares(digest));
    // The whole tensor, byte by byte.
    std::vector<std::byte> tensor(digest.pieces[0].tensor_bytes);
    for (OwnedPiece const& piece : digest.pieces) {
      std::uint64_t runs = 1;
      for (ByteDim const& dim : piece.dims) runs *= dim.count;
      for (std::uint64_t run = 0; run < runs; ++run) {
        RunPlace const place = place_of_run(run, piece.dims.data(), piece.dims.size());
        std::memcpy(tensor.data() + static_cast<std::int64_t>(piece.at) + place.to,
                    digest.device.from.data() + static_cast<std::int64_t>(piece.from) + place.from,
                    piece.run_bytes);
      }
    }
    std::uint64_t whole = 0;
    for (std::uint64_t const share : digest.shares) whole ^= share;
    ASSERT_EQ(whole, test::slow_digest(tensor)) << digest.device.name;
  }
}

TEST(Digest, RunsOfEveryShortLengthAtEveryAddress) {
  std::vector<std::uint64_t> lengths(80);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = i + 1;
  expect_shares(test::run_case(lengths, 1));
}

TEST(Digest, RunsOfSeveralLanesAndStretches) {
  // Around the lengths from which on 2, 4, … 32 threads share a stretch, and around those that take
  // one more stretch.
  std::vector<std::uint64_t> lengths;
  for (std::uint64_t const length :
       {512U, 1024U, 2048U, 4096U, 8192U, 16384U, 32768U, 65536U, 98304U})
    for (std::uint64_t const more : {0U, 1U, 7U, 8U, 9U, 100U})
      lengths.insert(lengths.end(), {length - more, length + more});
  std::uint64_t const seed = std::random_device{}();
  std::ranges::shuffle(lengths, std::mt19937_64(seed));
  lengths.resize(25);
  expect_shares(test::run_case(lengths, seed));
  expect_shares(test::run_case({(1U << 20U) + 12345, 300'007}, seed));
}

TEST(Digest, TensorsOfTerabytes) {
  for (std::uint64_t seed = 1; seed < 20; ++seed)
    ASSERT_NO_FATAL_FAILURE(expect_shares(test::far_case(seed)));
}

TEST(Digest, ZerosAndNothingAddNothing) {
  std::vector<std::byte> const zeros(1000);
  EXPECT_EQ(strided_digest(zeros.data(), 1000, {}, 5), 0U);
  std::vector<ByteDim> const none{{0, 8, 8}};
  std::vector<std::byte> const ones(1000, std::byte{1});
  EXPECT_EQ(strided_digest(ones.data(), 8, none, 5), 0U);
  EXPECT_EQ(strided_digest(ones.data(), 0, {}, 5), 0U);
  Program program;
  DigestRequest const request{.run_bytes = 8, .dims = none, .tensor_bytes = 8};
  add_digests(program, std::span(&request, 1));
  EXPECT_TRUE(program.launches.empty());
}

TEST(Digest, ARunOutsideTheTensorIsOurBug) {
  Program program;
  DigestRequest const request{.at = 4, .run_bytes = 8, .dims = {}, .tensor_bytes = 11};
  EXPECT_THROW(add_digests(program, std::span(&request, 1)), Error);
}

}  // namespace
}  // namespace reshard
