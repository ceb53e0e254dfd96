// Copies the files of a folder with an engine of run.io and nothing else: no plan, no digests, no
// journal. What it takes is the physical limit beside which a run of reshard that moves as many
// bytes can be put.
//
//   raw_copy FROM TO [ENGINE [THREADS [BLOCK_MIB]]]   JSON: bytes, seconds with the last sync. TO
//   is made. THREADS blocks are under way at a time, each read and then written

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/capture.hpp"
#include "core/base/text/json.hpp"
#include "core/base/threads/workers.hpp"
#include "core/io/file_set.hpp"
#include "core/io/io_engines.hpp"

namespace {

using namespace reshard;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Memory that any engine can use without a copy.
struct Aligned {
  explicit Aligned(std::size_t bytes)
      : data(static_cast<std::byte*>(std::aligned_alloc(4096, bytes))) {}
  ~Aligned() { std::free(data); }
  Aligned(Aligned&& other) noexcept : data(std::exchange(other.data, nullptr)) {}
  Aligned& operator=(Aligned&&) = delete;
  std::byte* data;
};

struct Block {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
};

struct Tree {
  std::vector<fs::path> from;
  std::vector<fs::path> to;
  std::vector<Block> blocks;
  std::uint64_t bytes = 0;
};

Tree made_tree(fs::path const& from, fs::path const& to, std::uint64_t block_bytes) {
  Tree tree;
  for (auto const& entry : fs::recursive_directory_iterator(from))
    if (entry.is_regular_file()) tree.from.push_back(entry.path());
  std::sort(tree.from.begin(), tree.from.end());
  for (std::size_t f = 0; f < tree.from.size(); ++f) {
    tree.to.push_back(to / fs::relative(tree.from[f], from));
    fs::create_directories(tree.to.back().parent_path());
    std::uint64_t const size = fs::file_size(tree.from[f]);
    File::create(tree.to.back()).resize(size);
    for (std::uint64_t at = 0; at < size; at += block_bytes)
      tree.blocks.push_back({static_cast<std::uint32_t>(f), at, std::min(block_bytes, size - at)});
    tree.bytes += size;
  }
  return tree;
}

void copy(fs::path const& from, fs::path const& to, std::string const& engine, std::size_t threads,
          std::uint64_t block_bytes) {
  Clock::time_point const start = Clock::now();
  Tree const tree = made_tree(from, to, block_bytes);
  FileSet sources(tree.from, FileSet::Access::read, FileSet::usual_open_limit(),
                  make_file_io(engine));
  FileSet targets(tree.to, FileSet::Access::write, FileSet::usual_open_limit(),
                  make_file_io(engine));
  Workers workers(threads);
  std::vector<Aligned> memory;
  for (std::size_t w = 0; w < threads; ++w) memory.emplace_back(block_bytes);
  workers.run(tree.blocks.size(), [&](std::size_t b, std::size_t worker) {
    Block const& block = tree.blocks[b];
    std::span const bytes(memory[worker].data, block.bytes);
    sources.open(block.file)->read_at(block.offset_bytes, bytes);
    targets.open(block.file)->write_at(block.offset_bytes, bytes);
  });
  workers.run(tree.to.size(),
              [&](std::size_t f, std::size_t) { targets.sync(static_cast<std::uint32_t>(f)); });
  targets.close();
  double const seconds = std::chrono::duration<double>(Clock::now() - start).count();
  Json result;
  result.set("engine", engine)
      .set("threads", threads)
      .set("files", tree.from.size())
      .set("bytes", tree.bytes)
      .set("seconds", seconds)
      .set("gib_per_second", static_cast<double>(tree.bytes) / seconds / (1 << 30));
  std::puts(result.dump(2).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: raw_copy FROM TO [ENGINE [THREADS [BLOCK_MIB]]]\n", stderr);
    return 2;
  }
  auto const number = [&](int at, int otherwise) {
    return static_cast<std::size_t>(std::max(1, argc > at ? std::atoi(argv[at]) : otherwise));
  };
  auto const error = capture([&] {
    copy(argv[1], argv[2], argc > 3 ? argv[3] : "posix", number(4, 4),
         std::uint64_t{number(5, 8)} << 20);
  });
  if (!error) return 0;
  std::fprintf(stderr, "error: %s\n", error->sentence().c_str());
  return exit_code(error->kind());
}
