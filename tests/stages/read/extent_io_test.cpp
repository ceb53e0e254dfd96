#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "core/io/io_engines.hpp"
#include "core/io/posix_io.hpp"
#include "stages/read/extent_reader.hpp"
#include "stages/write/extent_writer.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size, std::mt19937_64& random) {
  Bytes bytes(size);
  for (std::size_t i = 0; i + 8 <= size; i += 8) {
    std::uint64_t const word = random();
    std::memcpy(&bytes[i], &word, 8);
  }
  for (std::size_t i = size / 8 * 8; i < size; ++i) bytes[i] = static_cast<std::byte>(random());
  return bytes;
}

/// Cuts files of these sizes into extents of at most `most` bytes and gives each a place in
/// staging, in random order and with some gaps.
std::vector<Extent> random_partition(std::vector<std::uint64_t> const& sizes, std::uint64_t most,
                                     std::mt19937_64& random) {
  std::vector<Extent> extents;
  for (std::uint32_t file = 0; file < sizes.size(); ++file)
    for (std::uint64_t offset = 0; offset < sizes[file];) {
      std::uint64_t const bytes = std::min(sizes[file] - offset, random() % (most + 1));
      extents.push_back({file, offset, bytes, 0});
      offset += bytes;
    }
  // Half of the time neighbours in the file stay neighbours in staging.
  if (random() % 2 == 0) std::shuffle(extents.begin(), extents.end(), random);
  std::uint64_t at = 0;
  for (Extent& extent : extents) {
    extent.at = at;
    at += extent.bytes + (random() % 4 == 0 ? random() % 9 : 0);
  }
  std::shuffle(extents.begin(), extents.end(), random);
  return extents;
}

std::uint64_t staging_bytes(std::vector<Extent> const& extents) {
  std::uint64_t end = 1;
  for (Extent const& extent : extents) end = std::max(end, extent.at + extent.bytes);
  return end;
}

std::vector<std::uint64_t> random_sizes(std::mt19937_64& random, std::uint64_t most) {
  std::vector<std::uint64_t> sizes(1 + random() % 4);
  for (std::uint64_t& size : sizes) size = random() % most;
  return sizes;
}

TEST(ExtentReader, PutsEveryExtentWhereItBelongs) {
  ScratchFolder const folder("reader");
  for (std::uint64_t seed = 1; seed <= 60 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::uint64_t const most = seed % 10 == 0 ? 20'000'000 : 20'000;
    std::vector<std::uint64_t> const sizes = random_sizes(random, most);
    std::vector<Bytes> contents;
    std::vector<std::filesystem::path> paths;
    for (std::size_t f = 0; f < sizes.size(); ++f) {
      contents.push_back(random_bytes(sizes[f], random));
      paths.push_back(folder.file(fmt::format("source{}", f), contents.back()));
    }
    std::vector<Extent> const extents =
        random_partition(sizes, seed % 3 == 0 && seed % 10 != 0 ? 5 : most / 3, random);
    FileSet files(paths, FileSet::Access::read, 2, io_engines()[seed % 2].make());
    ExtentReader reader(files, {}, {}, 1 + seed % 4);
    Bytes staging(staging_bytes(extents));
    reader.read(extents, staging.data());
    for (Extent const& extent : extents)
      EXPECT_TRUE(std::equal(
          contents[extent.file].begin() + static_cast<std::ptrdiff_t>(extent.offset_bytes),
          contents[extent.file].begin() +
              static_cast<std::ptrdiff_t>(extent.offset_bytes + extent.bytes),
          staging.begin() + static_cast<std::ptrdiff_t>(extent.at)))
          << "file " << extent.file << " offset " << extent.offset_bytes;
    EXPECT_EQ(reader.stats().bytes, std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}));
    EXPECT_LE(files.open_count(), 2U);
  }
}

TEST(ExtentReader, JoinsNeighboursIntoOneCall) {
  ScratchFolder const folder("reader_joins");
  FileSet files({folder.file("a", Bytes(3000))}, FileSet::Access::read);
  ExtentReader reader(files);
  Bytes staging(9000);
  std::vector<Extent> const extents{{0, 1000, 1000, 5000}, {0, 0, 1000, 0}, {0, 2000, 1000, 1000}};
  reader.read(extents, staging.data());
  EXPECT_EQ(reader.stats().calls, 1U);
}

TEST(ExtentReader, ACutSourceIsAnErrorWithItsName) {
  ScratchFolder const folder("reader_cut");
  std::filesystem::path const path = folder.file("shard", Bytes(100'000));
  FileSet files({path}, FileSet::Access::read);
  ExtentReader reader(files);
  Bytes staging(100'000);
  std::vector<Extent> const extents{{0, 0, 100'000, 0}};
  reader.read(extents, staging.data());
  std::filesystem::resize_file(path, 50'000);
  try {
    reader.read(extents, staging.data());
    FAIL() << "no error";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_NE(error.sentence().find("shard"), std::string::npos) << error.sentence();
    EXPECT_NE(error.sentence().find("50000"), std::string::npos) << error.sentence();
  }
}

/// Writes random files piece by piece, in several rounds, and reads them back; the observer must
/// have seen every byte once.
void write_and_compare(std::filesystem::path const& parent, std::shared_ptr<FileIo> io,
                       std::uint64_t seed) {
  ScratchFolder const folder("writer", parent);
  std::mt19937_64 random(seed);
  std::uint64_t const most = seed % 10 == 0 ? 30'000'000 : seed % 3 == 0 ? 5'000 : 400'000;
  std::vector<std::uint64_t> const sizes = random_sizes(random, most);
  std::vector<Extent> const extents = random_partition(sizes, most < 10'000 ? 7 : most / 3, random);
  Bytes staging = random_bytes(staging_bytes(extents), random);
  std::vector<std::filesystem::path> paths;
  std::vector<Bytes> expected;
  std::vector<Bytes> seen;
  for (std::size_t f = 0; f < sizes.size(); ++f) {
    paths.push_back(folder.empty_file(fmt::format("target{}", f), sizes[f]));
    expected.emplace_back(sizes[f]);
    seen.emplace_back(sizes[f]);
  }
  std::uint64_t seen_bytes = 0;
  std::mutex mutex;
  WriteObserver const observer = [&](std::uint32_t file, std::uint64_t offset_bytes,
                                     std::span<std::byte const> bytes) {
    std::lock_guard const lock(mutex);
    seen_bytes += bytes.size();
    std::copy(bytes.begin(), bytes.end(),
              seen[file].begin() + static_cast<std::ptrdiff_t>(offset_bytes));
  };
  FileSet files(paths, FileSet::Access::write, FileSet::usual_open_limit(), std::move(io));
  ExtentWriter writer(files, observer, nullptr, 1 + seed % 4);
  std::size_t const half = extents.size() / 2;
  writer.write(std::span(extents).first(half), staging.data());
  writer.write(std::span(extents).subspan(half), staging.data());
  for (Extent const& extent : extents)
    std::copy_n(staging.begin() + static_cast<std::ptrdiff_t>(extent.at), extent.bytes,
                expected[extent.file].begin() + static_cast<std::ptrdiff_t>(extent.offset_bytes));
  for (std::size_t f = 0; f < sizes.size(); ++f)
    EXPECT_EQ(bytes_of(paths[f]), expected[f]) << "file " << f;
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(seen_bytes, writer.stats().bytes);
}

TEST(ExtentWriter, WritesWhatWasStagedInEveryMode) {
  for (WriteMode const mode :
       {WriteMode::automatic, WriteMode::dontcache, WriteMode::window, WriteMode::buffered})
    for (std::uint64_t seed = 1; seed <= 20 && !testing::Test::HasFailure(); ++seed) {
      SCOPED_TRACE(testing::Message() << "mode " << name_of(mode) << " seed " << seed);
      write_and_compare(std::filesystem::temp_directory_path(), std::make_shared<PosixIo>(mode),
                        seed);
    }
}

TEST(ExtentWriter, WritesToMemoryFileSystemsToo) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  for (std::uint64_t seed = 1; seed <= 20 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    write_and_compare("/dev/shm", std::make_shared<PosixIo>(), seed);
  }
}

TEST(ExtentWriter, WritesWithEveryEngine) {
  for (IoEngine const& engine : io_engines())
    for (std::uint64_t seed = 1; seed <= 20 && !testing::Test::HasFailure(); ++seed) {
      SCOPED_TRACE(testing::Message() << engine.name << ", seed " << seed);
      write_and_compare(std::filesystem::temp_directory_path(), engine.make(), seed);
    }
}

TEST(ExtentWriter, JoinsNeighboursIntoOneCall) {
  ScratchFolder const folder("writer_joins");
  FileSet files({folder.empty_file("a", 3 * 4096)}, FileSet::Access::write);
  WriteObserver const nobody;
  ExtentWriter writer(files, nobody);
  Bytes staging(9 * 4096);
  std::vector<Extent> const extents{
      {0, 8192, 4096, 20'000}, {0, 0, 4096, 0}, {0, 4096, 4096, 9000}};
  writer.write(extents, staging.data());
  EXPECT_EQ(writer.stats().calls, 1U);
}

/// Whether the file system of the test shares extents or refuses to does not show in the bytes.
TEST(ExtentWriter, ClonesAreTheBytesOfTheSource) {
  ScratchFolder const folder("clones");
  std::mt19937_64 random(5);
  Bytes const source = random_bytes(20U << 20U, random);
  std::uint64_t const part = 9U << 20U;  // more than is copied at a time
  FileSet sources({folder.file("source", source)}, FileSet::Access::read);
  FileSet files({folder.file("target", Bytes(20U << 20U))}, FileSet::Access::write);
  std::uint64_t observed = 0;
  WriteObserver const observer = [&](std::uint32_t, std::uint64_t,
                                     std::span<std::byte const> bytes) {
    observed += bytes.size();
  };
  std::uint64_t unread = 0;
  bool copied = false;
  ExtentWriter writer(files, observer, nullptr, 1,
                      {&sources, [&](CloneExtent const& extent, bool was_copied) {
                         unread += extent.bytes;
                         copied = copied || was_copied;
                       }});
  Bytes staging(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(part));
  RoundWork round;
  round.writes = {{0, 4096, part, 0}};
  round.clones = {{0, 0, 0, 4096, 8U << 20U}};
  round.unread = {{0, 10U << 20U, 0, 10U << 20U, part}};
  writer.take(round, staging.data());
  EXPECT_EQ(observed, part);
  EXPECT_EQ(unread, part);
  EXPECT_EQ(writer.stats().bytes + writer.stats().cloned_bytes, 2 * part);
  EXPECT_EQ(writer.stats().clone_calls, copied ? 0U : 2U);
  Bytes expected(20U << 20U);
  std::copy_n(source.begin(), part, expected.begin() + 4096);
  std::copy_n(source.begin() + (10 << 20), part, expected.begin() + (10 << 20));
  Bytes found(20U << 20U);
  File::open_for_reading(folder.path() / "target").read_at(0, found);
  EXPECT_TRUE(found == expected);
}

TEST(ExtentWriter, AFileLimitIsAnErrorOfResources) {
  ScratchFolder const folder("writer_limit");
  FileSet files({folder.empty_file("target", 4 << 20)}, FileSet::Access::write);
  WriteObserver const nobody;
  ExtentWriter writer(files, nobody);
  Bytes staging(4 << 20);
  std::vector<Extent> const extents{{0, 0, 4 << 20, 0}};
  auto const before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit const low{1 << 20, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &low);
  std::optional<ErrorKind> kind;
  try {
    writer.write(extents, staging.data());
  } catch (Error const& error) {
    kind = error.kind();
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(kind, ErrorKind::resources);
}

TEST(ExtentBatch, CutsOnPagesAndLeavesTheTailPageApart) {
  std::vector<Extent> const extents{{0, 100, 20'000, 0}};
  auto const batches = batches_of(extents, {.most_bytes = 8192, .tail = TailPage::apart});
  std::vector<std::array<std::uint64_t, 2>> places;
  for (ExtentBatch const& batch : batches) places.push_back({batch.offset_bytes, batch.bytes});
  EXPECT_EQ(places,
            (std::vector<std::array<std::uint64_t, 2>>{{100, 8092}, {8192, 8192}, {16384, 3716}}));
  EXPECT_EQ(batches_of(extents, {.most_bytes = 1 << 20, .tail = TailPage::apart}).size(), 2U);
  EXPECT_EQ(batches_of(extents, {.most_bytes = 1 << 20, .tail = TailPage::joined}).size(), 1U);
}

/// Whatever way extents cross the pages: what is written now and what is kept make up all, and no
/// page is touched that is to be kept.
TEST(EdgeBytes, KeepWhatLiesInTheirPages) {
  for (std::uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<std::uint64_t> const sizes = random_sizes(random, 2000);
    std::vector<Extent> const extents = random_partition(sizes, 300, random);
    Bytes const staging = random_bytes(staging_bytes(extents), random);
    std::vector<FileSpan> pages;
    std::vector<Bytes> expected(sizes.size());
    for (std::uint32_t f = 0; f < sizes.size(); ++f) {
      expected[f].resize(sizes[f]);
      for (std::uint64_t at = 64 * (random() % 4); at < sizes[f]; at += 64 * (2 + random() % 9))
        pages.push_back({f, at, at + 64});
    }
    for (Extent const& e : extents)
      std::memcpy(expected[e.file].data() + e.offset_bytes, staging.data() + e.at, e.bytes);
    EdgeBytes edges(pages);
    std::vector<Bytes> result(sizes.size());
    for (std::uint32_t f = 0; f < sizes.size(); ++f) result[f].resize(sizes[f]);
    for (Extent const& e : edges.keep(by_place(extents), staging.data())) {
      for (FileSpan const& page : pages)
        EXPECT_TRUE(e.file != page.file || e.offset_bytes + e.bytes <= page.begin ||
                    e.offset_bytes >= page.end);
      std::memcpy(result[e.file].data() + e.offset_bytes, staging.data() + e.at, e.bytes);
    }
    for (auto const& [file, segment] : edges.all())
      std::memcpy(result[file].data() + segment.offset_bytes, segment.bytes.data(),
                  segment.bytes.size());
    EXPECT_EQ(result, expected);
    EXPECT_EQ(edges.take_new(), edges.all());
    EXPECT_TRUE(edges.take_new().empty());
  }
}

TEST(ExtentWriter, ShowsWhatItKeepsBackToTheObserver) {
  ScratchFolder const folder("writer_edges");
  FileSet files({folder.empty_file("a", 300)}, FileSet::Access::write);
  std::uint64_t observed = 0;
  WriteObserver const observer = [&](std::uint32_t, std::uint64_t,
                                     std::span<std::byte const> bytes) {
    observed += bytes.size();
  };
  EdgeBytes edges({{0, 0, 64}});
  ExtentWriter writer(files, observer, &edges);
  Bytes staging(300, std::byte{1});
  std::vector<Extent> const extents{{0, 10, 290, 10}};
  writer.write(extents, staging.data());
  writer.close();
  files.close();
  EXPECT_EQ(observed, 290U);
  EXPECT_EQ(writer.stats().bytes, 290U);
  ASSERT_EQ(edges.all().size(), 1U);
  EXPECT_EQ(edges.all()[0], (HeldBytes{0, {10, std::string(54, '\1')}}));
  Bytes const there = bytes_of(folder.path() / "a");
  EXPECT_EQ(there[63], std::byte{0});
  EXPECT_EQ(there[64], std::byte{1});
}

}  // namespace
}  // namespace reshard
