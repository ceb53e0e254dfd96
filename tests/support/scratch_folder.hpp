#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "core/base/files/file.hpp"

namespace reshard {

/// A fresh folder that is gone with its contents at the end of its scope.
class ScratchFolder {
 public:
  explicit ScratchFolder(std::string_view name, std::filesystem::path const& parent =
                                                    std::filesystem::temp_directory_path())
      : path_(parent / fmt::format("reshard_{}_{}", name, ::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(ScratchFolder const&) = delete;
  ScratchFolder& operator=(ScratchFolder const&) = delete;

  std::filesystem::path const& path() const { return path_; }

  std::filesystem::path file(std::string const& name, std::vector<std::byte> const& bytes) const {
    File const created = File::create(path_ / name);
    created.write_at(0, bytes);
    return created.path();
  }
  std::filesystem::path empty_file(std::string const& name, std::uint64_t bytes) const {
    File const created = File::create(path_ / name);
    created.resize(bytes);
    return created.path();
  }

 private:
  std::filesystem::path path_;
};

inline std::vector<std::byte> bytes_of(std::filesystem::path const& path) {
  File const file = File::open_for_reading(path);
  std::vector<std::byte> bytes(file.size_bytes());
  file.read_at(0, bytes);
  return bytes;
}

}  // namespace reshard
