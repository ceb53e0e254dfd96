#include "core/formats/manifest/file_records.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/hash/sha256.hpp"
#include "core/base/hash/xxh3.hpp"

namespace reshard {

namespace {

/// Hands a file's bytes to `take` in parts; returns how many there were.
template <class Take>
std::uint64_t read_in_parts(std::filesystem::path const& path, Take take) {
  File const file = File::open_for_reading(path, ErrorKind::io);
  std::uint64_t const size = file.size_bytes();
  std::vector<std::byte> part(1U << 20);
  for (std::uint64_t at = 0; at < size; at += part.size()) {
    auto const bytes = std::span(part).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), size - at)));
    file.read_at(at, bytes);
    take(bytes);
  }
  return size;
}

}  // namespace

FileRecord record_of(std::filesystem::path const& path, std::filesystem::path const& root) {
  Xxh3 hash;
  std::uint64_t const size = read_in_parts(path, [&hash](auto bytes) { hash.add(bytes); });
  return {path.lexically_relative(root).generic_string(), size, hash.value()};
}

std::string sha256_of(std::filesystem::path const& path) {
  Sha256 hash;
  read_in_parts(path, [&hash](auto bytes) { hash.add(bytes); });
  return hash.hex();
}

FileFound found_file(std::filesystem::path const& path, std::filesystem::path const& root) {
  Xxh3 xxh3;
  Sha256 sha256;
  std::uint64_t const size = read_in_parts(path, [&](auto bytes) {
    xxh3.add(bytes);
    sha256.add(bytes);
  });
  return {{path.lexically_relative(root).generic_string(), size, xxh3.value()}, sha256.hex()};
}

FileRecord record_of_text(std::string path, std::string_view text) {
  Xxh3 hash;
  hash.add(std::as_bytes(std::span(text)));
  return {std::move(path), text.size(), hash.value()};
}

}  // namespace reshard
