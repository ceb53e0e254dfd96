// How fast one core sums up digests, beside memcpy of the same bytes, and how fast one rank scans a
// file that is in memory.

#include <cstring>
#include <random>

#include <benchmark/benchmark.h>

#include "core/base/hash/crc64.hpp"
#include "core/base/hash/sha256.hpp"
#include "core/base/hash/xxh3.hpp"
#include "core/device/strided_digest.hpp"
#include "stages/verify/scans/scan.hpp"
#include "stages/verify/scans/scan_digest.hpp"
#include "tests/support/scratch_folder.hpp"

namespace {

using namespace reshard;

constexpr std::uint64_t block_bytes = std::uint64_t{2} << 20;  // what a scan takes at once
constexpr std::uint64_t memory_bytes = std::uint64_t{256} << 20;

std::vector<std::byte> const& memory() {
  static std::vector<std::byte> const bytes = [] {
    std::vector<std::byte> made(memory_bytes);
    std::mt19937_64 random(1);
    for (std::size_t at = 0; at < made.size(); at += 8) {
      std::uint64_t const word = random();
      std::memcpy(made.data() + at, &word, 8);
    }
    return made;
  }();
  return bytes;
}

/// Calls `work` with one block of the memory after the other.
template <class Work>
void over_blocks(benchmark::State& state, Work work) {
  std::vector<std::byte> const& from = memory();
  std::uint64_t at = 0;
  for (auto _ : state) {
    work(std::span(from).subspan(at, block_bytes));
    at = (at + block_bytes) % memory_bytes;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(block_bytes));
}

void copy(benchmark::State& state) {
  std::vector<std::byte> to(block_bytes);
  over_blocks(state, [&](std::span<std::byte const> block) {
    std::memcpy(to.data(), block.data(), block.size());
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  });
}
BENCHMARK(copy);

void digest(benchmark::State& state, std::uint64_t run_bytes, std::vector<ByteDim> const& dims) {
  over_blocks(state, [&](std::span<std::byte const> block) {
    benchmark::DoNotOptimize(strided_digest(block.data(), run_bytes, dims, 1U << 30U));
  });
}
BENCHMARK_CAPTURE(digest, contiguous, block_bytes, {});
BENCHMARK_CAPTURE(digest, runs_of_512, 512, {{block_bytes / 512, 512, 4096}});
BENCHMARK_CAPTURE(digest, runs_of_64, 64, {{block_bytes / 64, 64, 4096}});
BENCHMARK_CAPTURE(digest, transposed_2_bytes, 2, {{1024, 2048, 2}, {1024, 2, 2048}});

void digest_of_block(benchmark::State& state, std::uint64_t run_bytes,
                     std::vector<ByteDim> const& dims) {
  ScanBlock const scanned{
      .begin = 0, .end = block_bytes, .run_bytes = run_bytes, .after_bytes = 1U << 30U};
  BlockDigest digests;
  over_blocks(state, [&](std::span<std::byte const> block) {
    benchmark::DoNotOptimize(digests.share(scanned, dims, block.data()));
  });
}
BENCHMARK_CAPTURE(digest_of_block, transposed_2_bytes, 2, {{1024, 2048, 2}, {1024, 2, 2048}});
BENCHMARK_CAPTURE(digest_of_block, transposed_in_part, 2, {{128, 16384, 2}, {8192, 2, 16384}});

template <class Hash, auto result>
void hash(benchmark::State& state) {
  Hash hash;
  over_blocks(state, [&](std::span<std::byte const> block) { hash.add(block); });
  benchmark::DoNotOptimize((hash.*result)());
}
BENCHMARK_TEMPLATE(hash, Xxh3, &Xxh3::value);
BENCHMARK_TEMPLATE(hash, Sha256, &Sha256::hex);

/// A file of one matrix that is stored as it is, or of tensors of 64 KiB.
void scan_file(benchmark::State& state, std::uint64_t tensor_bytes, ScanOptions const& options) {
  ScratchFolder const folder("scan_bench", std::filesystem::is_directory("/dev/shm")
                                               ? "/dev/shm"
                                               : std::filesystem::temp_directory_path());
  std::vector<std::filesystem::path> const files = {folder.file("f", memory())};
  DigestWork work;
  for (std::uint64_t at = 0; at < memory_bytes; at += tensor_bytes) {
    auto const share = ShareId(work.shares.size());
    work.tensor_bytes.push_back(tensor_bytes);
    work.shares.push_back({.digest = DigestId(work.shares.size()), .same_as = share});
    work.regions.push_back({.to = share, .src_offset_bytes = at, .run_bytes = tensor_bytes});
  }
  for (auto _ : state) benchmark::DoNotOptimize(scan(Comm::world(), files, work, options));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(memory_bytes));
}
BENCHMARK_CAPTURE(scan_file, one_tensor, memory_bytes, {})->UseRealTime()->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(scan_file, tensors_of_64_KiB, 1U << 16U, {})
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(scan_file, one_tensor_and_hashes, memory_bytes, {.file_hashes = true})
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(scan_file, one_tensor_and_sha256, memory_bytes,
                  {.file_hashes = true, .sha256 = true})
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(scan_file, one_tensor_and_sha256_on_two_threads, memory_bytes,
                  {.threads = 2, .file_hashes = true, .sha256 = true})
    ->UseRealTime()
    ->MeasureProcessCPUTime();

/// The requests alone, in one thread.
void read_file(benchmark::State& state) {
  ScratchFolder const folder("scan_bench", std::filesystem::is_directory("/dev/shm")
                                               ? "/dev/shm"
                                               : std::filesystem::temp_directory_path());
  File const file = File::open_for_reading(folder.file("f", memory()));
  std::vector<std::byte> to(std::size_t{8} << 20);
  for (auto _ : state)
    for (std::uint64_t at = 0; at < memory_bytes; at += to.size()) file.read_at(at, to);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(memory_bytes));
}
BENCHMARK(read_file)->UseRealTime()->MeasureProcessCPUTime();

}  // namespace

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
