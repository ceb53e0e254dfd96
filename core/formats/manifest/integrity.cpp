#include <algorithm>

#include "core/formats/manifest/manifest.hpp"
#include "core/formats/manifest/member.hpp"

namespace reshard {
namespace {

constexpr std::string_view algorithm = "sha256";

/// The code point that begins at `at` in UTF-8, and moves past it; a byte that is not part of
/// such text counts as itself.
std::uint32_t next_code_point(std::string_view text, std::size_t& at) {
  auto const byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  unsigned const first = byte(at);
  std::size_t const more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
  std::uint32_t point = first & (more == 0 ? 0xffU : 0x3fU >> more);
  for (std::size_t i = 1; i <= more; ++i) point = point << 6U | (byte(at + i) & 0x3fU);
  at += more + 1;
  return point;
}

std::string unquoted(std::string const& quoted) { return quoted.substr(1, quoted.size() - 2); }

/// As Python's json module writes a text by default: ASCII only.
std::string ascii_quoted(std::string_view text) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    std::size_t const begin = at;
    std::uint32_t const point = next_code_point(text, at);
    if (point == '\b' || point == '\f')
      out += point == '\b' ? "\\b" : "\\f";
    else if (point < 0x80)
      out += unquoted(json_quoted(text.substr(begin, 1)));
    else if (point < 0x10000)
      out += fmt::format("\\u{:04x}", point);
    else
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((point - 0x10000) >> 10U),
                         0xdc00 + ((point - 0x10000) & 0x3ffU));
  }
  return out + '"';
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string integrity_text(Integrity const& integrity) {
  std::string text = fmt::format("{{\n  \"algorithm\": \"{}\",\n  \"files\": {{", algorithm);
  char const* between = "\n";
  for (Integrity::Entry const& entry : integrity.files) {
    text += fmt::format("{}    {}: \"{}\"", between, ascii_quoted(entry.path), entry.sha256);
    between = ",\n";
  }
  return text + (integrity.files.empty() ? "}\n}" : "\n  }\n}");
}

Integrity parse_integrity(std::string_view text, std::string const& file) {
  Json const json = parse_json(text, file);
  JsonPlace const document{file, "", json};
  if (json.find("algorithm") != nullptr && document.text("algorithm") != algorithm)
    document.fail_member("algorithm", "\"sha256\"");
  Integrity integrity;
  for (auto const& [path, value] : document.object("files")) {
    if (!is_inner_path(path))
      fail(ErrorKind::source,
           "{}: lists the path {}, which is not a file inside the checkpoint. Do not trust this "
           "file.",
           file, json_quoted(path));
    if (value.text() == nullptr || !is_sha256(*value.text()))
      JsonPlace{file, "files", document.member("files")}.fail_member(
          path, "a string of 64 lower-case hexadecimal digits");
    integrity.files.push_back({path, *value.text()});
  }
  std::sort(integrity.files.begin(), integrity.files.end(),
            [](auto const& a, auto const& b) { return a.path < b.path; });
  return integrity;
}

}  // namespace reshard
