// What every engine promises: one suite over all of them.

#include "core/io/file_io.hpp"

#include <bit>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "core/io/direct_io.hpp"
#include "core/io/io_engines.hpp"
#include "tests/support/random_bytes.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

Bytes part_of(Bytes const& bytes, std::uint64_t offset, std::uint64_t count) {
  auto const begin = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

/// A transfer's memory: parts of random length, at random places of one block, far apart or not.
class Scattered {
 public:
  Scattered(std::uint64_t bytes, std::uint64_t most, std::mt19937_64& random) {
    std::vector<std::uint64_t> lengths;
    for (std::uint64_t left = bytes; left > 0; left -= lengths.back())
      lengths.push_back(std::min(left, 1 + random() % most));
    std::vector<std::uint64_t> places;
    std::uint64_t at = random() % 5000;
    for (std::uint64_t const length : lengths) {
      places.push_back(at);
      at += length + (random() % 3 == 0 ? random() % 300 : 0);
    }
    memory_.resize(at + 1);
    for (std::size_t i = 0; i < lengths.size(); ++i)
      parts_.push_back({memory_.data() + places[i], lengths[i]});
  }

  std::vector<iovec> const& parts() const { return parts_; }
  void set(std::span<std::byte const> bytes) {
    for (iovec const& part : parts_) {
      std::memcpy(part.iov_base, bytes.data(), part.iov_len);
      bytes = bytes.subspan(part.iov_len);
    }
  }
  Bytes get() const {
    Bytes all;
    for (iovec const& part : parts_) {
      auto const* const begin = static_cast<std::byte const*>(part.iov_base);
      all.insert(all.end(), begin, begin + part.iov_len);
    }
    return all;
  }

 private:
  Bytes memory_;
  std::vector<iovec> parts_;
};

class FileIoTest : public testing::TestWithParam<std::string_view> {
 protected:
  std::unique_ptr<FileIo> io_ = make_file_io(GetParam());
  ScratchFolder folder_{"file_io"};

  /// The kind of the error that `work` ends with; its sentence names `place`.
  template <class Work>
  std::optional<ErrorKind> kind_of(Work const& work, std::string const& place) {
    try {
      work();
    } catch (Error const& error) {
      EXPECT_NE(error.sentence().find(place), std::string::npos) << error.sentence();
      return error.kind();
    }
    return std::nullopt;
  }
};

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (IoEngine const& engine : io_engines()) all.push_back(engine.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Engines, FileIoTest, testing::ValuesIn(names()),
                         [](auto const& given) { return std::string(given.param); });

TEST_P(FileIoTest, SaysItsNameAndWhatItNeeds) {
  EXPECT_EQ(io_->name(), GetParam());
  EXPECT_TRUE(io_->fallback().empty()) << "nothing was opened";
  IoAlignment const asked = io_->alignment();
  EXPECT_TRUE(std::has_single_bit(asked.file_bytes) && std::has_single_bit(asked.memory_bytes));
}

TEST_P(FileIoTest, WritesAndReadsAnyStretchToAndFromAnyMemory) {
  for (std::uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::uint64_t const size = random() % (seed % 8 == 0 ? 12'000'000 : 400'000);
    std::uint64_t const most = seed % 3 == 0 ? 50'000 : seed % 3 == 1 ? 3'000'000 : 300;
    Bytes const content = random_bytes(size, seed);
    auto const path = folder_.empty_file("a", size);
    auto const target = io_->open_for_writing(path);
    for (std::uint64_t at = 0; at < size;) {
      std::uint64_t const count = std::min(size - at, 1 + random() % (size / 2 + 1));
      Scattered memory(count, most, random);
      memory.set(part_of(content, at, count));
      target->write_parts_at(at, memory.parts());
      at += count;
    }
    target->sync();
    target->close();
    EXPECT_EQ(bytes_of(path), content);
    auto const source = io_->open_for_reading(path);
    for (int i = 0; i < 4; ++i) {
      std::uint64_t const at = random() % (size + 1);
      std::uint64_t const count = random() % (size - at + 1);
      Scattered const memory(count, most, random);
      source->read_parts_at(at, memory.parts());
      EXPECT_EQ(memory.get(), part_of(content, at, count)) << at << " + " << count;
    }
  }
}

TEST_P(FileIoTest, AWriteLeavesItsNeighboursAlone) {
  for (std::uint64_t const begin : {0U, 1U, 4095U, 4096U, 5000U})
    for (std::uint64_t const end : {200'000U, 204'800U, 204'801U, 299'999U, 300'000U}) {
      Bytes expected = random_bytes(300'000, 1);
      auto const path = folder_.file("a", expected);
      Bytes const bytes = random_bytes(end - begin, 2);
      io_->open_for_writing(path)->write_at(begin, bytes);
      std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<std::ptrdiff_t>(begin));
      EXPECT_EQ(bytes_of(path), expected) << begin << " to " << end;
    }
}

TEST_P(FileIoTest, NeighboursThatShareAPageAreBothThere) {
  auto const path = folder_.empty_file("a", 1'000'000);
  Bytes const content = random_bytes(1'000'000, 3);
  auto const file = io_->open_for_writing(path);
  for (std::uint64_t at = 0; at < content.size(); at += 100'000)
    file->write_at(at, part_of(content, at, 100'000));
  file->close();
  EXPECT_EQ(bytes_of(path), content);
}

TEST_P(FileIoTest, ReadsShortFilesToTheirLastByte) {
  for (std::uint64_t const size : {0U, 1U, 4095U, 4096U, 4097U, 65'535U, 65'537U, 200'001U}) {
    Bytes const content = random_bytes(size, size);
    auto const file = io_->open_for_reading(folder_.file("a", content));
    Bytes whole(size);
    file->read_at(0, whole);
    EXPECT_EQ(whole, content);
    Bytes more(size + 10'000);
    ASSERT_EQ(file->read_some_at(0, more), size);
    EXPECT_EQ(part_of(more, 0, size), content);
    EXPECT_EQ(file->read_some_at(size, more), 0U);
    EXPECT_EQ(file->read_some_at(size + 5000, more), 0U) << "behind the end";
    if (size == 0) continue;
    Bytes last(1);
    EXPECT_EQ(file->read_some_at(size - 1, more), 1U);
    file->read_at(size - 1, last);
    EXPECT_EQ(last[0], content.back());
  }
}

TEST_P(FileIoTest, TheEndOfTheFileIsAnErrorOfTheSource) {
  for (std::uint64_t const size : {0U, 10U, 100'000U, 131'072U}) {
    auto const path = folder_.file("shard", Bytes(size));
    auto const file = io_->open_for_reading(path);
    Bytes into(300'000);
    EXPECT_EQ(kind_of([&] { file->read_at(0, into); }, "shard"), ErrorKind::source) << size;
    EXPECT_EQ(kind_of([&] { file->read_at(size, std::span(into).first(1)); },
                      fmt::format("offset {}", size)),
              ErrorKind::source);
  }
}

TEST_P(FileIoTest, AFileThatIsCutWhileItIsOpenIsAnError) {
  auto const path = folder_.file("shard", Bytes(400'000));
  auto const file = io_->open_for_reading(path);
  Bytes into(400'000);
  file->read_at(0, into);
  std::filesystem::resize_file(path, 150'001);
  EXPECT_EQ(kind_of([&] { file->read_at(0, into); }, "150001"), ErrorKind::source);
}

TEST_P(FileIoTest, HolesAreZeroAndStayHoles) {
  std::uint64_t const size = 5'000'003;
  auto const path = folder_.empty_file("a", size);
  Bytes const bytes = random_bytes(1'000'000, 4);
  auto const target = io_->open_for_writing(path);
  target->write_at(2'000'001, bytes);
  target->close();
  auto const file = io_->open_for_reading(path);
  EXPECT_EQ(file->file().size_bytes(), size);
  Bytes whole(size, std::byte{7});
  file->read_at(0, whole);
  Bytes expected(size);
  std::copy(bytes.begin(), bytes.end(), expected.begin() + 2'000'001);
  EXPECT_EQ(whole, expected);
}

TEST_P(FileIoTest, TakesMorePartsThanTheSystemDoesAtOnce) {
  std::mt19937_64 random(5);
  Bytes const content = random_bytes(60'000, 5);
  auto const path = folder_.empty_file("a", content.size());
  Scattered memory(content.size(), 20, random);
  ASSERT_GT(memory.parts().size(), 3000U);
  memory.set(content);
  io_->open_for_writing(path)->write_parts_at(0, memory.parts());
  Scattered const back(content.size(), 17, random);
  io_->open_for_reading(path)->read_parts_at(0, back.parts());
  EXPECT_EQ(back.get(), content);
}

TEST_P(FileIoTest, ThreadsReadAndWriteDisjointPlacesOfOneFile) {
  constexpr std::uint64_t share = 3'000'001;
  constexpr std::uint64_t threads = 4;
  Bytes const content = random_bytes(threads * share, 6);
  auto const path = folder_.empty_file("a", content.size());
  auto const target = io_->open_for_writing(path);
  {
    std::vector<std::jthread> writers;
    for (std::uint64_t t = 0; t < threads; ++t)
      writers.emplace_back([&, t] {
        for (std::uint64_t done = 0; done < share; done += 500'000)
          target->write_at(
              t * share + done,
              part_of(content, t * share + done, std::min<std::uint64_t>(500'000, share - done)));
      });
  }
  target->sync();
  target->close();
  auto const source = io_->open_for_reading(path);
  std::vector<Bytes> found(threads, Bytes(share));
  {
    std::vector<std::jthread> readers;
    for (std::uint64_t t = 0; t < threads; ++t)
      readers.emplace_back([&, t] { source->read_at(t * share, found[t]); });
  }
  for (std::uint64_t t = 0; t < threads; ++t)
    EXPECT_EQ(found[t], part_of(content, t * share, share)) << t;
}

TEST_P(FileIoTest, WhatIsMissingOrNoFileIsOfTheAskedKind) {
  auto const path = folder_.path() / "nowhere";
  EXPECT_EQ(kind_of([&] { io_->open_for_reading(path); }, "nowhere"), ErrorKind::source);
  EXPECT_EQ(kind_of([&] { io_->open_for_reading(path, ErrorKind::io); }, "nowhere"), ErrorKind::io);
  EXPECT_EQ(kind_of([&] { io_->open_for_reading(folder_.path()); }, "file_io"), ErrorKind::source);
  EXPECT_EQ(kind_of([&] { io_->open_for_writing(path); }, "nowhere"), ErrorKind::io);
}

TEST_P(FileIoTest, AFileLimitIsAnErrorOfResources) {
  for (rlim_t const limit : {rlim_t{1} << 20, rlim_t{1'000'003}}) {
    auto const path = folder_.empty_file("target", 4 << 20);
    auto const file = io_->open_for_writing(path);
    Bytes const bytes(4 << 20);
    auto const before = std::signal(SIGXFSZ, SIG_IGN);
    rlimit old{};
    ::getrlimit(RLIMIT_FSIZE, &old);
    rlimit const low{limit, old.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &low);
    auto const kind = kind_of([&] { file->write_at(0, bytes); }, "target");
    ::setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, before);
    EXPECT_EQ(kind, ErrorKind::resources);
  }
}

TEST_P(FileIoTest, WorksOnMemoryFileSystemsToo) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  ScratchFolder const folder("file_io", "/dev/shm");
  Bytes const content = random_bytes(1'234'567, 8);
  auto const path = folder.empty_file("a", content.size());
  auto const file = io_->open_for_writing(path);
  file->write_at(0, content);
  file->sync();
  file->close();
  Bytes whole(content.size());
  io_->open_for_reading(path)->read_at(0, whole);
  EXPECT_EQ(whole, content);
}

TEST_P(FileIoTest, FilesMayOutliveTheirEngine) {
  Bytes const content = random_bytes(300'000, 9);
  auto const path = folder_.empty_file("a", content.size());
  auto const file = io_->open_for_writing(path);
  io_.reset();
  file->write_at(0, content);
  file->close();
  EXPECT_EQ(bytes_of(path), content);
}

/// One file, written by one engine and read by another while both have it open.
TEST(FileIo, EnginesSeeEachOthersWrites) {
  ScratchFolder const folder("file_io_both");
  auto const path = folder.empty_file("a", 1'000'000);
  for (IoEngine const& writing : io_engines())
    for (IoEngine const& reading : io_engines()) {
      auto const target = writing.make()->open_for_writing(path);
      auto const source = reading.make()->open_for_reading(path);
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        Bytes const content = random_bytes(1'000'000, seed);
        target->write_at(0, content);
        Bytes whole(content.size());
        source->read_at(0, whole);
        EXPECT_EQ(whole, content) << writing.name << ", then " << reading.name;
      }
    }
}

TEST(DirectIo, WritesDirectlyWhereTheFileSystemCan) {
  ScratchFolder const folder("direct_io");
  DirectIo io("direct", call_mover());
  io.open_for_writing(folder.empty_file("a", 1 << 20))->write_at(0, Bytes(1 << 20));
  if (!io.fallback().empty()) GTEST_SKIP() << io.fallback();
  EXPECT_EQ(io.write_mode(), "direct");
  // What is not in place must not reach the file system as it is: it would refuse that.
  auto const path = folder.file("b", random_bytes(1'000'000, 1));
  Bytes const bytes = random_bytes(700'003, 2);
  io.open_for_writing(path)->write_at(101, std::span(bytes).subspan(1));
  Bytes into(900'001);
  auto const file = io.open_for_reading(path);
  file->read_at(77, std::span(into).subspan(1));
  EXPECT_EQ(file->read_some_at(500'000, into), 500'000U);
  EXPECT_EQ(io.fallback(), "");
}

TEST(DirectIo, SaysWhyAFileGoesThroughThePageCache) {
  DirectIo io("direct", call_mover());
  auto const file = io.open_for_reading("/proc/version");  // no O_DIRECT there
  Bytes found(10'000);
  std::size_t const count = file->read_some_at(0, found);
  std::ifstream plain("/proc/version");
  std::string const text{std::istreambuf_iterator<char>(plain), {}};
  EXPECT_EQ(std::string(reinterpret_cast<char const*>(found.data()), count), text);
  EXPECT_NE(io.fallback().find("/proc/version: its file system"), std::string::npos)
      << io.fallback();
  EXPECT_NE(io.write_mode(), "direct");
}

}  // namespace
}  // namespace reshard
