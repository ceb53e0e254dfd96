// .metadata files with a million chunks: how long they take to read and to write, and what a chunk
// costs in the file.

#include <benchmark/benchmark.h>

#include "tests/support/dcp_metadata.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

constexpr std::uint32_t bands = 3334;

void read(benchmark::State& state, dcp::MetadataStyle style) {
  ScratchFolder const folder("metadata_bench");
  auto const path = folder.path() / ".metadata";
  write_text_file(
      path, dcp::write_metadata(banded_metadata(static_cast<std::uint32_t>(state.range(0)), bands),
                                style));
  File const file = File::open_for_reading(path);
  std::size_t chunks = 0;
  for (auto _ : state) chunks = dcp::read_metadata(file).chunks.size();
  state.counters["chunks"] = static_cast<double>(chunks);
  state.counters["chunks_per_second"] = benchmark::Counter(
      static_cast<double>(chunks), benchmark::Counter::kIsIterationInvariantRate);
}

void write(benchmark::State& state, dcp::MetadataStyle style) {
  dcp::Metadata const metadata = banded_metadata(static_cast<std::uint32_t>(state.range(0)), bands);
  std::size_t bytes = 0;
  for (auto _ : state) bytes = dcp::write_metadata(metadata, style).size();
  state.counters["bytes_per_chunk"] =
      static_cast<double>(bytes) / static_cast<double>(metadata.chunks.size());
}

BENCHMARK_CAPTURE(read, compact, dcp::MetadataStyle::compact)
    ->Arg(3)
    ->Arg(300)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read, plain, dcp::MetadataStyle::plain)->Arg(300)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write, compact, dcp::MetadataStyle::compact)
    ->Arg(300)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write, plain, dcp::MetadataStyle::plain)->Arg(300)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace reshard
