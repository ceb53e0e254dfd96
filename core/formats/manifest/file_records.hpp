#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/formats/manifest/manifest.hpp"

namespace reshard {

/// Size and XXH3 of a file, read in parts; its path counts from `root`.
FileRecord record_of(std::filesystem::path const& path, std::filesystem::path const& root);
/// The SHA-256 of a file, in hexadecimal digits.
std::string sha256_of(std::filesystem::path const& path);
/// Both, in one pass.
struct FileFound {
  FileRecord record;
  std::string sha256;
};
FileFound found_file(std::filesystem::path const& path, std::filesystem::path const& root);
/// Size and XXH3 of bytes that a file is to have.
FileRecord record_of_text(std::string path, std::string_view text);

}  // namespace reshard
