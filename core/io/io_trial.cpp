#include "core/io/io_trial.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/threads/workers.hpp"
#include "core/io/direct_io.hpp"
#include "core/io/io_engines.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// The size of contiguous reads and writes of a round.
constexpr std::uint64_t block_bytes = std::uint64_t{8} << 20;
/// An engine that is faster by less may win by noise, and writing through the page cache goes on
/// while a job reads, which no trial sees.
constexpr double least_gain = 1.25;
/// Each engine is tried this number of times, in turn with the others: the second time in reverse
/// order.
constexpr std::size_t passes = 3;
/// Pages that are checked in the cache.
constexpr std::uint64_t samples = 256;
/// With a larger share in the cache, an engine that bypasses it would have to be twice as fast.
constexpr double most_cached_share = 0.5;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

/// One buffer per thread: aligned for every engine, with bytes that no device can compress.
std::vector<Memory> memory_of(std::size_t threads) {
  std::vector<Memory> all;
  for (std::size_t t = 0; t < threads; ++t) {
    all.emplace_back(static_cast<std::byte*>(std::aligned_alloc(direct_block_bytes, block_bytes)));
    if (!all.back())
      fail(ErrorKind::resources,
           "no memory for {}, which each thread needs to try the file system. Set run.io, so that "
           "nothing is tried, or lower run.threads.",
           human_bytes(block_bytes));
    std::uint64_t state = t + 1;
    for (std::uint64_t i = 0; i < block_bytes; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      all.back().get()[i] = static_cast<std::byte>(state >> 56);
    }
  }
  return all;
}

/// The rate of moving `bytes` bytes with an engine; 0 where it cannot be done.
double rate_of(std::uint64_t bytes, std::function<void()> const& move) {
  Clock::time_point const start = Clock::now();
  if (capture(move)) return 0;
  return static_cast<double>(bytes) / std::chrono::duration<double>(Clock::now() - start).count();
}

IoTrial untried(double cached) { return {io_engines().front().name, {}, cached}; }

/// Moves something with each engine, `passes` times. `move(io, turn)`: turns are numbered from 0
/// over all engines and passes.
std::vector<EngineRate> try_in_turn(std::uint64_t bytes_of_a_turn,
                                    std::function<void(FileIo&, std::size_t)> const& move) {
  std::span<IoEngine const> const engines = io_engines();
  std::vector<EngineRate> rates(engines.size());
  for (std::size_t turn = 0; turn < passes * engines.size(); ++turn) {
    std::size_t const place = turn % engines.size();
    bool const backwards = turn / engines.size() % 2 == 1;
    std::size_t const e = backwards ? engines.size() - 1 - place : place;
    std::unique_ptr<FileIo> const io = engines[e].make();
    double rate = rate_of(bytes_of_a_turn, [&] { move(*io, turn); });
    if (!io->fallback().empty()) rate = 0;
    double& so_far = rates[e].bytes_per_second;
    if (turn < engines.size())
      so_far = rate;
    else
      so_far = e == 0 ? std::max(so_far, rate) : std::min(so_far, rate);
    rates[e].engine = engines[e].name;
  }
  return rates;
}

struct Block {
  std::size_t file = 0;
  std::uint64_t offset_bytes = 0;
};

/// `count` blocks from files of these sizes; none if the files are too small.
std::vector<Block> blocks_of(std::span<std::uint64_t const> sizes, std::size_t count) {
  std::vector<Block> blocks;
  for (std::size_t f = 0; f < sizes.size(); ++f)
    for (std::uint64_t at = 0; at + block_bytes <= sizes[f] && blocks.size() < count;
         at += block_bytes)
      blocks.push_back({f, at});
  if (blocks.size() < count) blocks.clear();
  return blocks;
}

void read_blocks(FileIo& io, std::span<fs::path const> files, std::span<Block const> blocks,
                 std::span<Memory const> memory) {
  std::vector<std::unique_ptr<IoFile>> opened(files.size());
  for (Block const& block : blocks)
    if (!opened[block.file]) opened[block.file] = io.open_for_reading(files[block.file]);
  Workers workers(memory.size());
  workers.run(blocks.size(), [&](std::size_t b, std::size_t worker) {
    opened[blocks[b].file]->read_at(blocks[b].offset_bytes, {memory[worker].get(), block_bytes});
  });
}

/// Best effort: cached blocks would be read faster than the rest of the files.
void drop_from_cache(std::span<fs::path const> files, std::span<Block const> blocks) {
  for (Block const& block : blocks)
    if (auto const error = capture([&] {
          File const file = File::open_for_reading(files[block.file]);
          ::posix_fadvise(file.descriptor(), static_cast<off_t>(block.offset_bytes), block_bytes,
                          POSIX_FADV_DONTNEED);
        }))
      return;
}

/// Whether the page that contains this byte is cached. Pre: offset_bytes < size of the file.
bool is_page_cached(fs::path const& path, std::uint64_t offset_bytes) {
  auto const page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  File const file = File::open_for_reading(path);
  void* const mapped = ::mmap(nullptr, page, PROT_READ, MAP_SHARED, file.descriptor(),
                              static_cast<off_t>(offset_bytes / page * page));
  if (mapped == MAP_FAILED) fail_errno(path, "map", errno);
  unsigned char resident = 1;
  ::mincore(mapped, page, &resident);
  ::munmap(mapped, page);
  return (resident & 1U) != 0;
}

/// An unlinked file, which leaves no trace however the program ends.
std::unique_ptr<IoFile> nameless_file(FileIo& io, fs::path const& folder, std::uint64_t bytes) {
  fs::path const path = folder / ".reshard-io-trial";
  File file = File::create(path);
  std::error_code error;
  if (!fs::remove(path, error)) fail_errno(path, "remove", error.value());
  file.resize(bytes);
  return io.adopt(std::move(file));
}

void write_files(FileIo& io, fs::path const& folder, std::uint64_t blocks_of_each,
                 std::span<Memory const> memory) {
  std::vector<std::unique_ptr<IoFile>> files;
  for (std::size_t f = 0; f < memory.size(); ++f)
    files.push_back(nameless_file(io, folder, blocks_of_each * block_bytes));
  Workers workers(memory.size());
  workers.run(files.size(), [&](std::size_t f, std::size_t worker) {
    for (std::uint64_t b = 0; b < blocks_of_each; ++b)
      files[f]->write_at(b * block_bytes, {memory[worker].get(), block_bytes});
    files[f]->sync();
    files[f]->close();
  });
}

}  // namespace

std::uint64_t trial_bytes_for(std::uint64_t job_bytes) {
  return std::clamp<std::uint64_t>(job_bytes / 1024, std::uint64_t{16} << 20,
                                   std::uint64_t{64} << 20);
}

double share_in_page_cache(std::span<fs::path const> files, std::span<std::uint64_t const> sizes) {
  std::uint64_t total = 0;
  for (std::uint64_t const size : sizes) total += size;
  if (total == 0) return 1;
  std::uint64_t cached = 0;
  std::uint64_t begin = 0;  // of the file that contains the sample, in the concatenation of all
                            // files
  std::size_t f = 0;
  for (std::uint64_t s = 0; s < samples; ++s) {
    std::uint64_t const at = total / samples * s;
    for (; at >= begin + sizes[f]; ++f) begin += sizes[f];
    bool is_cached = true;
    (void)capture([&] { is_cached = is_page_cached(files[f], at - begin); });
    if (is_cached) ++cached;
  }
  return static_cast<double>(cached) / samples;
}

std::string_view fastest_engine(std::span<EngineRate const> rates, double cached_share) {
  auto const best = std::ranges::max_element(rates, {}, &EngineRate::bytes_per_second);
  // Cached bytes take an engine that uses the page cache hardly any time.
  return best->bytes_per_second * (1 - cached_share) > least_gain * rates.front().bytes_per_second
             ? best->engine
             : rates.front().engine;
}

IoTrial try_reading(std::span<fs::path const> files, std::span<std::uint64_t const> sizes,
                    std::size_t threads, std::uint64_t trial_bytes) {
  double const cached = share_in_page_cache(files, sizes);
  if (cached > most_cached_share) return untried(cached);
  std::size_t const count = std::max<std::size_t>(trial_bytes / block_bytes, threads);
  std::vector<Block> const blocks = blocks_of(sizes, count * io_engines().size() * passes);
  if (blocks.empty()) return untried(cached);
  std::vector<Memory> const memory = memory_of(threads);
  drop_from_cache(files, blocks);
  IoTrial trial = untried(cached);
  trial.rates = try_in_turn(count * block_bytes, [&](FileIo& io, std::size_t turn) {
    read_blocks(io, files, std::span(blocks).subspan(turn * count, count), memory);
  });
  trial.chosen = fastest_engine(trial.rates, cached);
  return trial;
}

IoTrial try_writing(fs::path const& folder, std::size_t threads, std::uint64_t trial_bytes) {
  std::vector<Memory> const memory = memory_of(threads);
  std::uint64_t const each = std::max<std::uint64_t>(trial_bytes / block_bytes / threads, 1);
  IoTrial trial = untried(0);
  trial.rates = try_in_turn(each * threads * block_bytes, [&](FileIo& io, std::size_t) {
    write_files(io, folder, each, memory);
  });
  trial.chosen = fastest_engine(trial.rates, 0);
  return trial;
}

}  // namespace reshard
