#include "tests/gpu/testbed.hpp"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/base/error.hpp"
#include "core/device/cuda/check_cuda.hpp"
#include "tests/gpu/random_fill_kernel.hpp"
#include "tests/gpu/random_words.hpp"

namespace reshard::test {
namespace {

constexpr std::chrono::seconds longest_wait{120};
constexpr int skip_exit_code = 77;

}  // namespace

void finish(DeviceStream& stream) {
  auto const event = stream.record();
  auto const begin = std::chrono::steady_clock::now();
  while (!event->reached()) {
    expect(std::chrono::steady_clock::now() - begin < longest_wait,
           "the device has not done its work within {} s", longest_wait.count());
    std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
}

Testbed::Testbed(std::unique_ptr<Device> device) : device_(std::move(device)) {
  for (std::size_t s = 0; s < stream_count; ++s) streams_.push_back(device_->new_stream());
}

void Testbed::upload(std::byte* to_device, std::vector<std::byte> const& bytes) {
  if (bytes.empty()) return;
  stream().upload(to_device, bytes.data(), bytes.size());
  finish(stream());
}

std::vector<std::byte> Testbed::download(std::byte const* from_device, std::uint64_t bytes) {
  std::vector<std::byte> result(bytes);
  if (bytes == 0) return result;
  stream().download(result.data(), from_device, bytes);
  finish(stream());
  return result;
}

void Testbed::carry_out(Program const& program, std::byte const* from, std::byte* to, bool spread) {
  if (program_memory_ == nullptr || program_memory_->bytes() < program.bytes.size())
    program_memory_ = device_->allocate(2 * program.bytes.size() + 256);
  upload(program_memory_->data(), program.bytes);
  std::size_t number = 0;
  for (Launch const& launch : program.launches)
    stream(spread ? number++ : 0).launch(launch, {program_memory_->data(), from, to});
  for (std::unique_ptr<DeviceStream> const& stream : streams_) finish(*stream);
}

PinnedBlock::PinnedBlock(Device& device, std::uint64_t bytes) : bytes_(bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED)
    fail(ErrorKind::resources, "{} bytes of host memory cannot be had", bytes);
  data_ = static_cast<std::byte*>(memory);
  try {
    pin_ = device.pin(data_, bytes);
  } catch (...) {
    ::munmap(data_, bytes_);
    throw;
  }
}

PinnedBlock::~PinnedBlock() {
  pin_.reset();
  ::munmap(data_, bytes_);
}

void fill_random(DeviceStream& stream, std::byte* at, std::uint64_t bytes, std::uint64_t seed,
                 std::uint64_t mask) {
  if (stream.handle() != nullptr)
    return check_cuda(
        start_random_fill(at, bytes, seed, mask, static_cast<cudaStream_t>(stream.handle())),
        "the start of a random fill");
  finish(stream);
  for (std::uint64_t i = 0; i < bytes / 8; ++i) {
    std::uint64_t const word = random_word(seed, i) & mask;
    std::memcpy(at + 8 * i, &word, 8);
  }
}

std::unique_ptr<Device> device_or_skip(bool emulated) {
  if (emulated) return make_emulated_device();
  CudaOffer const offer = cuda_offer();
  if (offer.devices > 0) return open_cuda_device(0);
  std::printf("skipped: %s\n", offer.why_none.c_str());
  std::exit(skip_exit_code);
}

void print_row(std::string const& group, std::string const& name, std::string const& result,
               std::string const& verdict) {
  std::printf("ROW\t%s\t%s\t%s\t%s\n", group.c_str(), name.c_str(), result.c_str(),
              verdict.c_str());
  std::fflush(stdout);
}

}  // namespace reshard::test
