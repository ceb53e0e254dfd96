#include "core/formats/manifest/sha256_sums.hpp"

#include <algorithm>
#include <cctype>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/manifest/member.hpp"

namespace reshard {
namespace {

constexpr std::size_t hex_digits = 64;
constexpr std::size_t path_at = hex_digits + 2;
constexpr std::uint64_t largest_sums = std::uint64_t{1} << 30U;

std::string escaped(std::string_view path) {
  std::string out;
  for (char const c : path) switch (c) {
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      default: out += c;
    }
  return out;
}

/// Nothing where a backslash is followed by another character than coreutils writes there.
std::optional<std::string> unescaped(std::string_view path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '\\') {
      out += path[i];
      continue;
    }
    if (++i == path.size()) return std::nullopt;
    switch (path[i]) {
      case '\\': out += '\\'; break;
      case 'n': out += '\n'; break;
      case 'r': out += '\r'; break;
      default: return std::nullopt;
    }
  }
  return out;
}

std::optional<FileSum> parsed_line(std::string_view line) {
  bool const is_escaped = line.starts_with('\\');
  if (is_escaped) line.remove_prefix(1);
  if (line.size() <= path_at || line[hex_digits] != ' ') return std::nullopt;
  if (line[hex_digits + 1] != ' ' && line[hex_digits + 1] != '*') return std::nullopt;
  FileSum sum;
  for (char const c : line.substr(0, hex_digits)) {
    auto const digit = static_cast<unsigned char>(c);
    if (std::isxdigit(digit) == 0) return std::nullopt;
    sum.sha256 += static_cast<char>(std::tolower(digit));
  }
  std::string_view path = line.substr(path_at);
  while (path.starts_with("./")) path.remove_prefix(2);
  std::optional<std::string> const whole =
      is_escaped ? unescaped(path) : std::optional(std::string(path));
  if (!whole) return std::nullopt;
  sum.path = *whole;
  return sum;
}

}  // namespace

std::string sums_text(std::vector<FileSum> sums) {
  std::ranges::sort(sums, {}, &FileSum::path);
  std::string text;
  for (FileSum const& sum : sums) {
    std::string const path = escaped(sum.path);
    if (path.size() != sum.path.size()) text += '\\';
    text += sum.sha256 + "  " + path + "\n";
  }
  return text;
}

std::vector<FileSum> parse_sums(std::string_view text, std::string const& file) {
  std::vector<FileSum> sums;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::size_t const end = std::min(text.find('\n'), text.size());
    std::string_view const line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.starts_with('#')) continue;
    auto sum = parsed_line(line);
    if (!sum)
      fail(ErrorKind::source,
           "{}: line {} is not a line of sha256sum: 64 hexadecimal digits, two spaces, a path. "
           "Make the file again, or remove it.",
           file, number);
    if (!is_inner_path(sum->path) || sum->path == sums_name)
      fail(ErrorKind::source,
           "{}: line {} has the path {}, which is not another file inside the checkpoint. Do "
           "not trust this file.",
           file, number, json_quoted(sum->path));
    sums.push_back(std::move(*sum));
  }
  std::ranges::sort(sums, {}, &FileSum::path);
  auto const twice = std::ranges::adjacent_find(sums, {}, &FileSum::path);
  if (twice != sums.end())
    fail(ErrorKind::source, "{}: lists {} twice. Make the file again, or remove it.", file,
         json_quoted(twice->path));
  return sums;
}

std::optional<std::vector<FileSum>> find_sums(std::filesystem::path const& folder) {
  std::filesystem::path const path = folder / sums_name;
  if (!sees_anything(path)) return std::nullopt;
  if (!sees_file(path))
    fail(ErrorKind::source, "{}: is not a regular file. Remove it, or restore it from a copy.",
         path.string());
  return parse_sums(read_text_file(allowed_member(folder, sums_name), largest_sums), path.string());
}

}  // namespace reshard
