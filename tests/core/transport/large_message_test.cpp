// One message above 2 GiB, from rank 1 to rank 0. Only places near the borders of parts and random
// ones are written and compared: filling it would take most of the time.

#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "core/transport/monitor/patience.hpp"
#include "core/transport/mpi_transport.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t bytes = (std::uint64_t{2} << 30) + (std::uint64_t{200} << 20) + 5;

/// Zeros that take no memory until they are written.
class LazyMemory {
 public:
  LazyMemory()
      : data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    ::madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~LazyMemory() { ::munmap(data_, bytes); }
  LazyMemory(LazyMemory const&) = delete;
  LazyMemory& operator=(LazyMemory const&) = delete;
  std::byte* data() { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
};

std::vector<std::uint64_t> places() {
  std::vector<std::uint64_t> places = {0, bytes - 1};
  for (std::uint64_t part = std::uint64_t{64} << 20; part < bytes; part += std::uint64_t{64} << 20)
    for (std::uint64_t const at : {part - 1, part, part + 1}) places.push_back(at);
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) places.push_back(random() % bytes);
  return places;
}

std::byte value_at(std::uint64_t place) { return static_cast<std::byte>(1 + place % 251); }

TEST(MpiTransport, CarriesAMessageAboveTwoGibibytes) {
  Comm const comm = Comm::world();
  ASSERT_EQ(comm.size(), 2);
  LazyMemory memory;
  bool const sends = comm.rank() == 1;
  for (std::uint64_t const place : places())
    memory.data()[place] = sends ? value_at(place) : std::byte{0};
  MpiTransport transport(comm);
  std::vector<FlatMessage> const messages = {{1 - comm.rank(), memory.data(), bytes}};
  transport.post(sends ? std::span<FlatMessage const>() : messages,
                 sends ? messages : std::span<FlatMessage const>(), 0);
  std::vector<Landed> landed;
  Patience patience(60, {});
  for (std::uint64_t seen = 0; landed.empty(); seen = transport.bytes_landed()) {
    transport.poll(landed);
    if (transport.bytes_landed() > seen) {
      patience.begin();
      EXPECT_TRUE(landed.size() == 1 || transport.bytes_landed() < bytes);
    } else {
      ASSERT_TRUE(patience.wait());
    }
  }
  ASSERT_EQ(landed.size(), 1U);
  EXPECT_EQ(landed[0].bytes, bytes);
  EXPECT_EQ(transport.bytes_landed(), bytes);
  for (std::uint64_t const place : places())
    ASSERT_EQ(memory.data()[place], value_at(place)) << "byte " << place;
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
