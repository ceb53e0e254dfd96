#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// The file of a checkpoint that `sha256sum -c` checks.
inline constexpr std::string_view sums_name = "SHA256SUMS";

/// The SHA-256 of one file.
struct FileSum {
  std::string path;    ///< relative to the checkpoint, '/' between names
  std::string sha256;  ///< 64 lower-case hexadecimal digits
  friend bool operator==(FileSum const&, FileSum const&) = default;
};

/// A line for each file, "HEX  PATH", in ascending order of the bytes of the paths. A
/// backslash or a line break in a path is escaped as coreutils does it.
std::string sums_text(std::vector<FileSum> sums);

/// Parses the output of sha256sum in either mode, sorted by path; "./" before a path is left out.
/// `file` is for messages. Errors of kind source: other lines, paths that leave the checkpoint, a
/// path twice.
std::vector<FileSum> parse_sums(std::string_view text, std::string const& file);

/// Those in a folder, when it has any.
std::optional<std::vector<FileSum>> find_sums(std::filesystem::path const& folder);

}  // namespace reshard
