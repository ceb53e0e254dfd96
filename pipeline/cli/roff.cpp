#include "pipeline/cli/roff.hpp"

#include <fmt/format.h>

#include "pipeline/cli/command_table.hpp"

namespace reshard {
namespace {

constexpr std::size_t columns = 78;

/// The code point of a UTF-8 sequence and its length; a byte that begins none stands for itself.
std::pair<unsigned, std::size_t> code_point(std::string_view text) {
  auto const byte = [&](std::size_t i) {
    return static_cast<unsigned>(static_cast<unsigned char>(text[i]));
  };
  std::size_t const length = byte(0) >= 0xf0U ? 4 : byte(0) >= 0xe0U ? 3 : byte(0) >= 0xc0U ? 2 : 1;
  if (length == 1 || length > text.size()) return {byte(0), 1};
  unsigned point = byte(0) & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) point = point << 6U | (byte(i) & 0x3fU);
  return {point, length};
}

/// Nothing in the result is an escape or leaves ASCII.
std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    auto const [point, length] = code_point(text);
    switch (point) {
      case '\\': out += "\\e"; break;
      case '-': out += "\\-"; break;
      case '\'': out += "\\(aq"; break;
      case '`': out += "\\(ga"; break;
      case '^': out += "\\(ha"; break;
      case '~': out += "\\(ti"; break;
      default:
        out += point < 0x80 ? std::string(1, static_cast<char>(point))
                            : fmt::format("\\[u{:04X}]", point);
    }
    text.remove_prefix(length);
  }
  return out;
}

/// Lines of text, none of which begins as a request does.
std::string guarded(std::string const& lines) {
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if ((i == 0 || lines[i - 1] == '\n') && lines[i] == '.') out += "\\&";
    out += lines[i];
  }
  return out;
}

/// Quoted arguments of a macro have no plain quotes inside.
std::string argument(std::string_view text) {
  std::string out;
  for (char const c : escaped(text)) out += c == '"' ? "\\(dq" : std::string(1, c);
  return "\"" + out + "\"";
}

}  // namespace

Roff::Roff(std::string_view title, int section, std::string_view date, std::string_view source,
           std::string_view manual) {
  text_ = fmt::format(".TH {} {} {} {} {}\n", argument(title), section, fmt::format("\"{}\"", date),
                      argument(source), argument(manual));
}

Roff& Roff::section(std::string_view title) {
  text_ += fmt::format(".SH {}\n", argument(title));
  fresh_ = true;
  return *this;
}

Roff& Roff::subsection(std::string_view title) {
  text_ += fmt::format(".SS {}\n", argument(title));
  fresh_ = true;
  return *this;
}

void Roff::filled(std::string_view text) {
  text_ += guarded(wrapped(escaped(text), columns, 0, 0)) + "\n";
}

Roff& Roff::paragraph(std::string_view text) {
  if (!fresh_) text_ += ".PP\n";
  fresh_ = false;
  filled(text);
  return *this;
}

Roff& Roff::item(std::string_view term, std::string_view text) {
  fresh_ = false;
  std::string shown = "\\fB";
  for (char const c : escaped(term))
    shown += c == '<' ? "\\fI" : c == '>' ? "\\fB" : std::string(1, c);
  text_ += fmt::format(".TP\n{}\\fR\n", shown);
  filled(text);
  return *this;
}

Roff& Roff::code(std::string_view lines) {
  text_ +=
      fmt::format("{}.RS 4\n.EX\n{}\n.EE\n.RE\n", fresh_ ? "" : ".PP\n", guarded(escaped(lines)));
  fresh_ = false;
  return *this;
}

}  // namespace reshard
