#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// Why two files of one name are not the same bytes, as the end of a sentence ("differ only in the
/// padding of the header"); "" where they are. Headers of safetensors files and JSON are compared
/// by what they say, too. Errors: source, io.
std::string why_different(std::filesystem::path const& a, std::filesystem::path const& b);

struct FileComparison {
  std::string text;
  Json json;
  bool same = false;
};

/// `reshard verify A B --files`: every file of two folders, or two files, byte by byte, wherever
/// they are in the folders. What this program adds to each target (reshard.json, SHA256SUMS) is
/// left out. At most `row_limit` differences are in the text. Collective: ranks share the files.
/// Errors: usage (a folder and a file), source, io.
FileComparison compare_files(std::filesystem::path const& a, std::filesystem::path const& b,
                             std::size_t row_limit, Comm const& comm);

}  // namespace reshard
