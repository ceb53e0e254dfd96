// What the process that reads an HDF5 file answers: a hostile file may have taken it over, so its
// bytes are believed no more than the file's. What is accepted lies in the file without overlap,
// and is the same after being packed and unpacked.

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <tuple>

#include "core/base/hash/crc64.hpp"
#include "core/containers/hdf5/child/check_found.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace reshard {
namespace {

constexpr std::uint64_t file_bytes = 1 << 16;

void expect_inside(hdf5::Found const& found) {
  std::uint64_t end = 0;
  std::vector<hdf5::FoundDataset> all = found.tensors;
  all.insert(all.end(), found.objects.begin(), found.objects.end());
  std::erase_if(all, [](hdf5::FoundDataset const& each) { return each.size_bytes == 0; });
  std::sort(all.begin(), all.end(),
            [](auto const& a, auto const& b) { return a.offset_bytes < b.offset_bytes; });
  for (hdf5::FoundDataset const& each : all) {
    FUZZ_EXPECT(each.offset_bytes >= end && each.size_bytes <= file_bytes - each.offset_bytes);
    end = each.offset_bytes + each.size_bytes;
  }
}

void set_crc(std::uint8_t* data, std::size_t size) {
  if (size < 8) return;
  std::uint64_t const crc = crc64(std::as_bytes(std::span(data, size - 8)));
  std::memcpy(data + size - 8, &crc, sizeof crc);
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  auto found = fuzz::attempt(ErrorKind::internal,
                             [&] { return hdf5::unpack(std::string(fuzz::text_of(data, size))); });
  if (!found) return 0;
  bool const checked = fuzz::accepted(ErrorKind::source, [&] {
                         hdf5::check_found(*found, file_bytes, "fuzz");
                         return true;
                       }).has_value();
  if (!checked) return 0;
  expect_inside(*found);
  std::string const packed = hdf5::pack(*found);
  FUZZ_EXPECT(hdf5::pack(hdf5::unpack(packed)) == packed);
  return 0;
}

/// The checksum at the end is put right, or nothing would get past it.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  if (most < 16) return LLVMFuzzerMutate(data, size, most);
  std::size_t const body = LLVMFuzzerMutate(data, size < 8 ? 0 : size - 8, most - 8);
  if (seed % 16 != 0) reshard::set_crc(data, body + 8);
  return body + 8;
}
