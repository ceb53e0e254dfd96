#include "core/io/io_trial.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>

#include <fcntl.h>

#include "core/base/capture.hpp"
#include "core/base/file.hpp"
#include "core/base/workers.hpp"
#include "core/io/direct_io.hpp"
#include "core/io/io_engines.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// As large as what rounds read and write in a row.
constexpr std::uint64_t block_bytes = std::uint64_t{8} << 20;
/// Two trials of the same engine on a busy disk differ by less, mostly.
constexpr double least_gain = 1.15;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

/// Of each thread: memory that any engine can use without a copy, with bytes that no device can
/// compress to nothing.
std::vector<Memory> memory_of(std::size_t threads) {
  std::vector<Memory> all;
  for (std::size_t t = 0; t < threads; ++t) {
    all.emplace_back(static_cast<std::byte*>(std::aligned_alloc(direct_block_bytes, block_bytes)));
    if (!all.back()) fail(ErrorKind::resources, "no memory for {}", human_bytes(block_bytes));
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

IoTrial untried() { return {io_engines().front().name, {}}; }

struct Block {
  std::size_t file = 0;
  std::uint64_t offset_bytes = 0;
};

/// So many blocks for each engine, from the largest files; none where these hold too little.
std::vector<Block> blocks_of(std::span<fs::path const> files, std::size_t count) {
  std::vector<Block> blocks;
  for (std::size_t f = 0; f < files.size() && blocks.size() < count; ++f) {
    std::error_code error;
    std::uint64_t const size = fs::file_size(files[f], error);
    if (error) continue;
    for (std::uint64_t at = 0; at + block_bytes <= size && blocks.size() < count; at += block_bytes)
      blocks.push_back({f, at});
  }
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

/// A hint, and no more: what is in the cache would be read faster than the rest of the files.
void drop_from_cache(std::span<fs::path const> files, std::span<Block const> blocks) {
  for (Block const& block : blocks)
    if (auto const error = capture([&] {
          File const file = File::open_for_reading(files[block.file]);
          ::posix_fadvise(file.descriptor(), static_cast<off_t>(block.offset_bytes), block_bytes,
                          POSIX_FADV_DONTNEED);
        }))
      return;
}

/// A file without a name: nothing is left of it, however the program ends.
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
  return std::clamp<std::uint64_t>(job_bytes / 128, std::uint64_t{32} << 20,
                                   std::uint64_t{128} << 20);
}

std::string_view fastest_engine(std::span<EngineRate const> rates) {
  auto const best = std::ranges::max_element(rates, {}, &EngineRate::bytes_per_second);
  return best->bytes_per_second > least_gain * rates.front().bytes_per_second
             ? best->engine
             : rates.front().engine;
}

IoTrial try_reading(std::span<fs::path const> files, std::size_t threads,
                    std::uint64_t trial_bytes) {
  std::size_t const count = std::max<std::size_t>(trial_bytes / block_bytes, 1);
  std::span<IoEngine const> const engines = io_engines();
  std::vector<Block> const blocks = blocks_of(files, count * engines.size());
  if (blocks.empty()) return untried();
  std::vector<Memory> const memory = memory_of(threads);
  drop_from_cache(files, blocks);
  IoTrial trial;
  for (std::size_t e = 0; e < engines.size(); ++e) {
    std::unique_ptr<FileIo> const io = engines[e].make();
    double const rate = rate_of(count * block_bytes, [&] {
      read_blocks(*io, files, std::span(blocks).subspan(e * count, count), memory);
    });
    trial.rates.push_back({engines[e].name, io->fallback().empty() ? rate : 0});
  }
  trial.chosen = fastest_engine(trial.rates);
  return trial;
}

IoTrial try_writing(fs::path const& folder, std::size_t threads, std::uint64_t trial_bytes) {
  std::vector<Memory> const memory = memory_of(threads);
  std::uint64_t const each = std::max<std::uint64_t>(trial_bytes / block_bytes / threads, 1);
  IoTrial trial;
  for (IoEngine const& engine : io_engines()) {
    std::unique_ptr<FileIo> const io = engine.make();
    double const rate =
        rate_of(each * threads * block_bytes, [&] { write_files(*io, folder, each, memory); });
    trial.rates.push_back({engine.name, io->fallback().empty() ? rate : 0});
  }
  trial.chosen = fastest_engine(trial.rates);
  return trial;
}

}  // namespace reshard
