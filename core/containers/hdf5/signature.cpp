#include <array>
#include <cstring>

#include "core/base/files/file.hpp"
#include "core/containers/hdf5/container.hpp"

namespace reshard::hdf5 {

bool looks_like_hdf5(std::filesystem::path const& path) {
  constexpr std::array<unsigned char, 8> signature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  constexpr std::uint64_t first_after_user_block = 512;  // then at each doubling
  File const file = File::open_for_reading(path);
  std::uint64_t const size = file.size_bytes();
  for (std::uint64_t at = 0; at + signature.size() <= size;
       at = at == 0 ? first_after_user_block : 2 * at) {
    std::array<std::byte, signature.size()> bytes{};
    if (file.read_some_at(at, bytes) == bytes.size() &&
        std::memcmp(bytes.data(), signature.data(), bytes.size()) == 0)
      return true;
  }
  return false;
}

}  // namespace reshard::hdf5
