#include "stages/verify/scans/scan.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/hash/crc64.hpp"
#include "core/base/hash/xxh3.hpp"
#include "core/device/strided_copy.hpp"
#include "stages/verify/scans/early_scan.hpp"
#include "stages/verify/scans/scan_share.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

/// A number in [least, most].
std::uint64_t between(std::mt19937_64& random, std::uint64_t least, std::uint64_t most) {
  return least + random() % (most - least + 1);
}

Bytes random_bytes(std::mt19937_64& random, std::uint64_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Files and what is wanted of them, the same on every rank.
struct World {
  std::vector<Bytes> files;
  DigestWork work;
};

/// A rank-independent folder with the files of a world.
class WorldFolder {
 public:
  WorldFolder(Comm const& comm, World const& world) : comm_(comm) {
    if (comm.rank() == 0) folder_.emplace("scan");
    path_ = comm.broadcast(folder_ ? folder_->path().string() : "", 0);
    for (std::size_t file = 0; file < world.files.size(); ++file)
      files_.push_back(path_ / fmt::format("f{}", file));
    write(world);
  }
  ~WorldFolder() { comm_.barrier(); }
  WorldFolder(WorldFolder const&) = delete;
  WorldFolder& operator=(WorldFolder const&) = delete;

  void write(World const& world) const {
    comm_.barrier();
    for (std::size_t file = 0; folder_ && file < world.files.size(); ++file)
      folder_->file(fmt::format("f{}", file), world.files[file]);
    comm_.barrier();
  }
  std::vector<std::filesystem::path> const& files() const { return files_; }

 private:
  Comm const& comm_;
  std::optional<ScratchFolder> folder_;  // of rank 0
  std::filesystem::path path_;
  std::vector<std::filesystem::path> files_;
};

/// Adds random pieces of new logical tensors; where they lie in the files is random, too.
class WorldMaker {
 public:
  explicit WorldMaker(std::uint64_t seed) : random_(seed) {
    for (std::uint64_t i = between(random_, 1, 5); i > 0; --i)
      world_.files.push_back(random_bytes(random_, between(random_, 0, 150000)));
  }

  World make(int tensors) {
    for (int i = 0; i < tensors; ++i) add_tensor();
    return std::move(world_);
  }

 private:
  void add_tensor() {
    std::vector<std::uint64_t> shape;
    for (std::uint64_t i = between(random_, 0, 4); i > 0; --i)
      shape.push_back(between(random_, 1, 12));
    element_ = std::uint64_t{1} << between(random_, 0, 3);
    if (random_() % 4 == 0) shape.push_back(between(random_, 1, 3000));
    world_.work.tensor_bytes.push_back(
        std::accumulate(shape.begin(), shape.end(), element_, std::multiplies<>()));
    for (std::uint64_t i = between(random_, 1, 3); i > 0; --i) add_share(shape);
  }

  /// A box of the tensor, which one or two regions hold.
  void add_share(std::vector<std::uint64_t> const& shape) {
    auto const share = ShareId(world_.work.shares.size());
    world_.work.shares.push_back(
        {.digest = DigestId(world_.work.tensor_bytes.size() - 1), .same_as = share});
    std::uint64_t at = 0;
    std::vector<ByteDim> dims;
    std::uint64_t stride = element_;
    for (std::size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
      std::uint64_t const begin = between(random_, 0, shape[d] - 1);
      dims.push_back({.count = between(random_, 1, shape[d] - begin),
                      .to_stride = static_cast<std::int64_t>(stride)});
      at += begin * stride;
    }
    std::shuffle(dims.begin(), dims.end(), random_);
    if (!dims.empty() && dims[0].count > 1 && random_() % 2 == 0) {
      std::vector<ByteDim> rest = dims;
      rest[0].count = dims[0].count / 2;
      dims[0].count -= rest[0].count;
      add_region(share, at + dims[0].count * static_cast<std::uint64_t>(dims[0].to_stride),
                 std::move(rest));
    }
    add_region(share, at, std::move(dims));
  }

  /// Strides of the file in the order of `dims`, the last one smallest, with room between rows and
  /// some of them backwards.
  void add_region(ShareId share, std::uint64_t to, std::vector<ByteDim> dims) {
    std::uint64_t span = element_;
    std::uint64_t first = 0;  // how far index 0 is behind the lowest byte
    for (std::size_t d = dims.size(); d-- > 0;) {
      std::uint64_t const stride = span + (random_() % 3 == 0 ? between(random_, 0, 2 * span) : 0);
      bool const backwards = random_() % 5 == 0;
      dims[d].from_stride = static_cast<std::int64_t>(stride) * (backwards ? -1 : 1);
      if (backwards) first += (dims[d].count - 1) * stride;
      span += (dims[d].count - 1) * stride;
    }
    auto const file = static_cast<std::uint32_t>(random_() % world_.files.size());
    Bytes& bytes = world_.files[file];
    if (bytes.size() < span) bytes = random_bytes(random_, span + between(random_, 0, 100));
    std::shuffle(dims.begin(), dims.end(), random_);
    DigestWork& work = world_.work;
    work.regions.push_back({.src_file = file,
                            .to = share,
                            .src_offset_bytes = between(random_, 0, bytes.size() - span) + first,
                            .dst_offset_bytes = to,
                            .run_bytes = element_,
                            .first_dim = static_cast<std::uint32_t>(work.dims.size()),
                            .dim_count = static_cast<std::uint32_t>(dims.size())});
    work.dims.insert(work.dims.end(), dims.begin(), dims.end());
  }

  std::mt19937_64 random_;
  World world_;
  std::uint64_t element_ = 1;
};

World random_world(std::uint64_t seed) { return WorldMaker(seed).make(12); }

/// A world of one tensor that one region holds.
World world_of(std::uint64_t file_bytes, std::uint64_t tensor_bytes, ShareRegion region,
               std::vector<ByteDim> dims) {
  std::mt19937_64 random(9);
  World world;
  world.files.push_back(random_bytes(random, file_bytes));
  world.work.tensor_bytes = {tensor_bytes};
  world.work.shares = {{}};
  region.dim_count = static_cast<std::uint32_t>(dims.size());
  world.work.regions = {region};
  world.work.dims = std::move(dims);
  return world;
}

/// The definition: the CRC of the tensor's bytes, of which all but those of the piece are zero.
std::vector<std::uint64_t> slow_shares(World const& world) {
  std::vector<std::uint64_t> shares;
  for (std::size_t i = 0; i < world.work.shares.size(); ++i) {
    Bytes tensor(world.work.tensor_bytes[index(world.work.shares[i].digest)]);
    for (ShareRegion const& region : world.work.regions) {
      if (region.to != ShareId(i)) continue;
      std::span const dims(world.work.dims.data() + region.first_dim, region.dim_count);
      copy_strided(world.files[region.src_file].data() + region.src_offset_bytes,
                   tensor.data() + region.dst_offset_bytes, region.run_bytes, dims);
    }
    shares.push_back(crc64_by_tables(tensor));
  }
  return shares;
}

ScanResult scan_of(WorldFolder const& folder, World const& world, ScanOptions const& options) {
  return scan(Comm::world(), folder.files(), world.work, options);
}

std::uint64_t bytes_in(std::vector<Bytes> const& files) {
  return std::accumulate(files.begin(), files.end(), std::uint64_t{0},
                         [](std::uint64_t sum, Bytes const& file) { return sum + file.size(); });
}

std::vector<ScanOptions> all_options() {
  std::vector<ScanOptions> all;
  for (std::uint64_t const memory : {1U, 1U << 17U, 1U << 26U})
    for (bool const hashes : {false, true})
      for (bool const past_cache : {false, true})
        for (std::size_t const threads : {1U, 3U})
          all.push_back({.memory_bytes = memory,
                         .threads = threads,
                         .file_hashes = hashes,
                         .past_cache = past_cache});
  return all;
}

/// Whole pages of the files of a world, some of them.
std::vector<FileSpan> random_pages(std::mt19937_64& random, World const& world) {
  std::vector<FileSpan> pages;
  for (std::uint32_t file = 0; file < world.files.size(); ++file)
    for (std::uint64_t at = 0; at + 4096 <= world.files[file].size();) {
      std::uint64_t const bytes = 4096 * between(random, 1, 4);
      if (at + bytes <= world.files[file].size() && random() % 2 == 0)
        pages.push_back({file, at, at + bytes});
      at += bytes + 4096 * between(random, 0, 2);
    }
  return united(std::move(pages), 0);
}

TEST(Scan, CountsBytesAsZerosWhetherTheyAreReadOrNot) {
  Comm const comm = Comm::world();
  std::uint64_t left_out = 0;
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    World const world = WorldMaker(seed).make(static_cast<int>(seed % 3));
    WorldFolder const folder(comm, world);
    std::mt19937_64 random(seed);
    auto const zeros = random_pages(random, world);
    World zeroed = world;
    for (FileSpan const& span : zeros)
      std::fill_n(zeroed.files[span.file].begin() + static_cast<std::ptrdiff_t>(span.begin),
                  span.end - span.begin, std::byte{0});
    for (ScanOptions options : all_options()) {
      if (!options.file_hashes) continue;
      options.zeros = zeros;
      for (bool const without : {false, true}) {
        options.without_zeros = without;
        ScanResult const result = scan_of(folder, world, options);
        ASSERT_EQ(result.shares, slow_shares(world));
        std::uint64_t read = 0;
        for (std::size_t file = 0; file < result.files.size(); ++file) {
          FileHashes const& found = result.files[file];
          ASSERT_EQ(found.crc64, crc64_by_tables(zeroed.files[file])) << seed << " " << file;
          ASSERT_EQ(found.size_bytes, world.files[file].size());
          Xxh3 hash;
          hash.add(world.files[file]);
          ASSERT_TRUE(found.read_bytes < found.size_bytes || found.xxh3 == hash.value());
          read += found.read_bytes;
        }
        EXPECT_EQ(read, result.bytes_read);
        EXPECT_TRUE(without || read == bytes_in(world.files));
        left_out += bytes_in(world.files) - read;
      }
    }
  }
  EXPECT_GT(left_out, 1'000'000U);
}

TEST(Scan, SumsUpTheSharesOfAllSlots) {
  Comm const comm = Comm::world();
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    World const world = random_world(seed);
    WorldFolder const folder(comm, world);
    auto const expected = slow_shares(world);
    for (ScanOptions const& options : all_options()) {
      ScanResult const result = scan_of(folder, world, options);
      ASSERT_EQ(result.shares, expected) << "seed " << seed << ", memory " << options.memory_bytes
                                         << ", hashes " << options.file_hashes;
      ASSERT_EQ(result.files.size(), options.file_hashes ? world.files.size() : 0);
      for (std::size_t file = 0; file < result.files.size(); ++file)
        ASSERT_EQ(result.files[file].crc64, crc64_by_tables(world.files[file]));
      std::uint64_t const all = bytes_in(world.files);
      EXPECT_TRUE(!options.file_hashes || result.bytes_read == all) << result.bytes_read;
      EXPECT_TRUE(comm.size() > 1 || options.threads > 1 || result.bytes_read <= all)
          << result.bytes_read;
    }
  }
}

/// A region that is hard to cut.
struct Shape {
  char const* what;
  std::uint64_t file_bytes;
  std::uint64_t tensor_bytes;
  ShareRegion region;
  std::vector<ByteDim> dims;
};

TEST(Scan, CutsRegionsOfAnyShapeToItsMemory) {
  std::vector<Shape> const shapes = {
      {"a long run", 1000003, 1000000, {.src_offset_bytes = 3, .run_bytes = 1000000}, {}},
      {"long runs with gaps",
       400000,
       300000,
       {.src_offset_bytes = 777, .run_bytes = 100000},
       {{3, 130001, 100000}}},
      {"long runs, the last first",
       400000,
       300000,
       {.src_offset_bytes = 260000, .run_bytes = 100000},
       {{3, -130000, 100000}}},
      {"far apart", 900000, 60, {.src_offset_bytes = 5, .run_bytes = 2}, {{30, 30011, 2}}},
      {"a matrix, transposed", 500000, 500000, {.run_bytes = 2}, {{500, 2, 1000}, {500, 1000, 2}}},
      {"a matrix, mirrored",
       500000,
       500000,
       {.src_offset_bytes = 499998, .run_bytes = 2},
       {{500, -1000, 1000}, {500, -2, 2}}},
      {"columns of a wide matrix",
       2000000,
       40000,
       {.src_offset_bytes = 64, .run_bytes = 100},
       {{400, 5000, 100}}},
      {"dimensions that do not nest", 40000, 40000, {.run_bytes = 1}, {{100, 7, 100}, {100, 5, 1}}},
      {"the end of the file", 20000, 1, {.src_offset_bytes = 19999, .run_bytes = 1}, {}},
      {"nothing", 20000, 5, {.src_offset_bytes = 50000, .run_bytes = 1}, {{0, 1, 1}}},
  };
  Comm const comm = Comm::world();
  for (Shape const& shape : shapes) {
    World const world = world_of(shape.file_bytes, shape.tensor_bytes, shape.region, shape.dims);
    WorldFolder const folder(comm, world);
    for (ScanOptions const& options : all_options())
      ASSERT_EQ(scan_of(folder, world, options).shares, slow_shares(world))
          << shape.what << ", memory " << options.memory_bytes;
  }
}

TEST(Scan, AChangedByteChangesTheSharesThatHoldIt) {
  Comm const comm = Comm::world();
  std::mt19937_64 random(4);
  std::size_t changed = 0;
  for (std::uint64_t seed = 100; seed < 130; ++seed) {
    World world = random_world(seed);
    WorldFolder const folder(comm, world);
    auto const before = scan_of(folder, world, {}).shares;
    ShareRegion const& region = world.work.regions[random() % world.work.regions.size()];
    std::size_t const last = region.first_dim + region.dim_count;
    std::int64_t at =
        static_cast<std::int64_t>(region.src_offset_bytes + random() % region.run_bytes);
    for (std::size_t d = region.first_dim; d < last; ++d)
      at += world.work.dims[d].from_stride *
            static_cast<std::int64_t>(random() % world.work.dims[d].count);
    std::byte& byte = world.files[region.src_file][static_cast<std::size_t>(at)];
    byte ^= std::byte{1} << random() % 8;
    folder.write(world);
    auto const after = scan_of(folder, world, {}).shares;
    EXPECT_NE(after[index(region.to)], before[index(region.to)]);
    EXPECT_EQ(after, slow_shares(world));
    for (std::size_t i = 0; i < after.size(); ++i)
      changed += static_cast<std::size_t>(after[i] != before[i]);
  }
  EXPECT_LT(changed, 30 * 15) << "bytes of files are in a few of the pieces only";
}

TEST(Scan, HashesFilesAsXxhsumDoes) {
  World world;
  Bytes pattern;
  for (std::size_t i = 0; i < 100000; ++i)
    pattern.push_back(static_cast<std::byte>((i * i * 31 + i * 7) % 251));
  world.files = {{}, pattern, {std::byte{'a'}, std::byte{'b'}, std::byte{'c'}}, {}};
  Comm const comm = Comm::world();
  WorldFolder const folder(comm, world);
  std::vector<FileHashes> const expected = {
      {0, 0x2d06800538d394c2U, 0, 0},
      {100000, 0xfb62f22720cdf920U, crc64_by_tables(pattern), 100000},
      {3, 0x78af5f94892f3950U, crc64_by_tables(world.files[2]), 3},
      {0, 0x2d06800538d394c2U, 0, 0}};
  for (std::uint64_t const memory : {1U, 1U << 26U}) {
    ScanResult const result = scan_of(folder, world, {.memory_bytes = memory, .file_hashes = true});
    EXPECT_EQ(result.files, expected);
    EXPECT_EQ(result.bytes_read, 100003U);
    Sha256 whole;
    whole.add(pattern);
    for (std::size_t const threads : {1U, 8U}) {  // with 8 some have no file
      auto const sums =
          scan_of(folder, world,
                  {.memory_bytes = memory, .threads = threads, .file_hashes = true, .sha256 = true})
              .files;
      EXPECT_EQ(hex_of(sums[0].sha256),
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
      EXPECT_EQ(hex_of(sums[2].sha256),
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
      EXPECT_EQ(sums[1].sha256, whole.digest());
      EXPECT_EQ(sums[1].crc64, expected[1].crc64);
      EXPECT_EQ(sums[1].xxh3, expected[1].xxh3);
    }
  }
}

TEST(Scan, SkipsWhatNobodyWants) {
  std::uint64_t const far = 2U << 20U;  // less than a window
  World const world = world_of(far + 6000, 16, {.src_offset_bytes = 5000, .run_bytes = 8},
                               {{2, static_cast<std::int64_t>(far), 8}});
  Comm const comm = Comm::world();
  WorldFolder const folder(comm, world);
  ScanResult const result = scan_of(folder, world, {});
  EXPECT_EQ(result.shares, slow_shares(world));
  EXPECT_LE(result.bytes_read, 8192U);
  EXPECT_EQ(scan_of(folder, world, {.file_hashes = true}).bytes_read, far + 6000);
}

TEST(Scan, AFileThatEndsEarlyIsAnErrorOnEveryRank) {
  Comm const comm = Comm::world();
  World world = world_of(1000, 2000, {.src_offset_bytes = 0, .run_bytes = 1500}, {});
  WorldFolder const folder(comm, world);
  for (ScanOptions const& options : all_options()) {
    std::optional<Error> const error = capture([&] { (void)scan_of(folder, world, options); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::io);
    EXPECT_NE(error->sentence().find("f0: ends at byte 1000, 1500 are needed"), std::string::npos)
        << error->sentence();
  }
  std::vector<std::filesystem::path> const missing = {"/nowhere/at/all"};
  std::optional<Error> const error = capture([&] { (void)scan(comm, missing, world.work, {}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
}

TEST(Scan, AFailureAmongManyFilesEndsTheReading) {
  Comm const comm = Comm::world();
  std::mt19937_64 random(6);
  World world = world_of(2, 10, {.src_file = 20, .run_bytes = 10}, {});
  world.files.resize(20, random_bytes(random, 300000));
  world.files.push_back(random_bytes(random, 9));
  WorldFolder const folder(comm, world);
  std::optional<Error> const error =
      capture([&] { (void)scan_of(folder, world, {.memory_bytes = 1, .file_hashes = true}); });
  ASSERT_TRUE(error);
  EXPECT_NE(error->sentence().find("f20: ends at byte 9, 10 are needed"), std::string::npos)
      << error->sentence();
}

// --- files that are read back while others are written ---

/// Of the files of a world, on this rank. What is handed to it is not there before.
class EarlyFiles {
 public:
  EarlyFiles(WorldFolder const& folder, World const& world)
      : folder_(folder),
        world_(world),
        scan_({.files = folder.files(),
               .work = [&world] { return std::make_shared<DigestWork const>(world.work); },
               .options = {.memory_bytes = 1U << 17U,
                           .file_hashes = true,
                           .sha256 = true,
                           .sha256_beside = world.files.size() % 2 == 0,
                           .past_cache = true}}) {}
  void add(std::uint32_t file) {
    std::filesystem::path const path = folder_.files()[file];
    write_bytes(path, Bytes(world_.files[file].size(), std::byte{'?'}));
    scan_.add(file, [this, path, file] { write_bytes(path, world_.files[file]); });
  }
  /// Waits until so much was read.
  void await(std::uint64_t bytes) const {
    for (int i = 0; i < 10000 && scan_.bytes_read() < bytes; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_GE(scan_.bytes_read(), bytes);
  }
  EarlyScan& scan() { return scan_; }

 private:
  static void write_bytes(std::filesystem::path const& path, Bytes const& bytes) {
    File file = File::open_for_writing(path);
    file.write_at(0, bytes);
    file.close();
  }
  WorldFolder const& folder_;
  World const& world_;
  EarlyScan scan_;
};

TEST(EarlyScan, GivesWhatIsFoundInTheEnd) {
  Comm const comm = Comm::world();
  std::uint64_t early_bytes = 0;
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    World const world = random_world(seed);
    WorldFolder const folder(comm, world);
    ScanOptions const options{.threads = 2, .file_hashes = true, .sha256 = true};
    ScanResult const expected = scan_of(folder, world, options);
    EarlyFiles early(folder, world);
    std::uint64_t bytes = 0;
    for (std::uint32_t file = 0; file < world.files.size(); ++file)
      if (file % static_cast<std::uint32_t>(comm.size() + 1) ==
          static_cast<std::uint32_t>(comm.rank())) {
        early.add(file);
        bytes += world.files[file].size();
      }
    if (seed % 2 == 0) early.await(bytes);
    early.scan().end();
    // Those that were handed over and not begun are completed as those that never were.
    comm.barrier();
    for (std::uint32_t file = 0; file < world.files.size(); ++file)
      if (!begun_early(comm, &early.scan(), world.files.size())[file] && comm.rank() == 0) {
        File written = File::open_for_writing(folder.files()[file]);
        written.write_at(0, world.files[file]);
        written.close();
      }
    comm.barrier();
    ScanResult const result = scan(comm, folder.files(), world.work, options, &early.scan());
    EXPECT_EQ(result.shares, expected.shares) << seed;
    EXPECT_EQ(result.shares, slow_shares(world)) << seed;
    EXPECT_EQ(result.files, expected.files) << seed;
    EXPECT_EQ(result.bytes_read, bytes_in(world.files));
    EXPECT_TRUE(seed % 2 == 1 || result.bytes_early >= bytes) << seed;
    early_bytes += result.bytes_early;
  }
  EXPECT_GT(early_bytes, 100'000U);
}

TEST(EarlyScan, WhatFailsIsThrownWhereItIsWaitedFor) {
  Comm const comm = Comm::world();
  World const world = random_world(3);
  WorldFolder const folder(comm, world);
  EarlyFiles early(folder, world);
  early.scan().add(0, [] { fail(ErrorKind::io, "the sync failed"); });
  std::optional<Error> error;
  for (int i = 0; i < 10000 && !error; ++i) {
    error = capture([&] { early.scan().check(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->sentence(), "the sync failed");
  EXPECT_TRUE(capture([&] { early.scan().end(); }));
  error = capture(
      [&] { (void)scan(comm, folder.files(), world.work, {.file_hashes = true}, &early.scan()); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
}

TEST(EarlyScan, ThatIsGivenUpTouchesNoFurtherFile) {
  Comm const comm = Comm::world();
  World const world = random_world(5);
  WorldFolder const folder(comm, world);
  std::atomic<int> finished = 0;
  std::atomic<bool> go_on = false;
  {
    EarlyFiles early(folder, world);
    early.scan().add(0, [&] {
      ++finished;
      while (!go_on) std::this_thread::yield();
    });
    while (finished == 0) std::this_thread::yield();
    for (std::uint32_t file = 1; file < 20; ++file) early.scan().add(0, [&] { ++finished; });
    go_on = true;
  }
  EXPECT_LE(finished, 2);
}

TEST(TensorDigests, AreThoseOfTheBytesWithoutReplicas) {
  DigestWork work;
  work.tensor_bytes = {10, 20, 0};
  work.shares = {{.digest = DigestId{0}, .same_as = ShareId{0}},
                 {.digest = DigestId{1}, .same_as = ShareId{1}},
                 {.digest = DigestId{0}, .same_as = ShareId{2}},
                 {.digest = DigestId{0}, .same_as = ShareId{0}}};
  std::vector<std::uint64_t> const shares = {0xf0, 0x5, 0x0f, 0xf1};
  EXPECT_EQ(tensor_digests(work, shares), (std::vector<std::uint64_t>{0xff, 0x5, 0}));
  EXPECT_EQ(differing_replicas(work, shares), std::vector<ShareId>{ShareId{3}});
}

TEST(TensorDigests, OfAWholeTensorIsItsCrc) {
  std::mt19937_64 random(8);
  World world = world_of(0, 3000, {.run_bytes = 1000}, {{2, 1000, 2000}});
  world.files[0] =
      random_bytes(random, 3000);  // the columns of a 3 x 1000 matrix: rows 0 and 2, then row 1
  world.work.shares.push_back({.same_as = ShareId{1}});
  world.work.regions.push_back(
      {.to = ShareId{1}, .src_offset_bytes = 2000, .dst_offset_bytes = 1000, .run_bytes = 1000});
  Comm const comm = Comm::world();
  WorldFolder const folder(comm, world);
  Bytes tensor = world.files[0];
  std::rotate(tensor.begin() + 1000, tensor.begin() + 2000, tensor.end());
  EXPECT_EQ(tensor_digests(world.work, scan_of(folder, world, {}).shares),
            std::vector<std::uint64_t>{crc64_by_tables(tensor)});
}

TEST(ShareOfBytes, GivesEveryByteToOneRank) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::uint64_t> bytes(between(random, 0, 6));
    for (std::uint64_t& count : bytes) count = random() % 3 == 0 ? 0 : between(random, 1, 1000);
    int const ranks = static_cast<int>(between(random, 1, 9));
    std::vector<std::uint64_t> next(bytes.size());
    std::uint64_t const total = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
    for (int rank = 0; rank < ranks; ++rank) {
      std::uint64_t mine = 0;
      for (FileShare const& share : share_of_bytes(bytes, rank, ranks)) {
        EXPECT_EQ(share.begin, next[share.file]);
        mine += share.end - share.begin;
        next[share.file] = share.end;
      }
      EXPECT_LE(mine, total / static_cast<std::uint64_t>(ranks) + 1);
    }
    EXPECT_EQ(next, bytes);
  }
}

TEST(ShareOfFiles, GivesEveryFileToOneRankAndBalancesThem) {
  std::vector<std::uint64_t> const bytes = {1, 100, 1, 60, 50, 1, 0, 40};
  std::vector<int> times(bytes.size());
  for (int rank = 0; rank < 3; ++rank) {
    std::uint64_t mine = 0;
    for (FileShare const& share : share_of_files(bytes, rank, 3)) {
      ++times[share.file];
      mine += bytes[share.file];
    }
    EXPECT_LE(mine, 100U);
    EXPECT_GE(mine, 53U);
  }
  EXPECT_EQ(times, std::vector<int>(bytes.size(), 1));
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
