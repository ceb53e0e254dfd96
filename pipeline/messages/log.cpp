#include "pipeline/messages/log.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>

#include <fmt/format.h>

#include "core/base/text.hpp"
#include "pipeline/messages/live_line.hpp"

namespace reshard {
namespace {

std::atomic<LogFormat> chosen = LogFormat::plain;

bool is_file(int descriptor, struct stat& of) {
  return ::fstat(descriptor, &of) == 0 && S_ISREG(of.st_mode);
}

/// Of messages: plain, text or json.
LogFormat format_of_messages() {
  struct stat file {};
  if (chosen != LogFormat::automatic) return chosen;
  return is_file(STDERR_FILENO, file) ? LogFormat::text : LogFormat::plain;
}

/// "2026-11-22 19:31:05 reshard: ", of the local clock.
std::string time_and_program() {
  std::time_t const now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} reshard: ", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string_view name(LogLevel level) {
  switch (level) {
    case LogLevel::info: return "info";
    case LogLevel::warning: return "warning";
    case LogLevel::error: return "error";
  }
  return "";
}

/// With `before` in front of each line.
std::string each_line(std::string_view text, std::string_view before) {
  std::string lines;
  while (!text.empty()) {
    std::size_t const end = std::min(text.find('\n'), text.size());
    lines += fmt::format("{}{}\n", before, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

void put(LogLevel level, std::string_view sentence, LogFormat format) {
  std::string lines;
  if (format == LogFormat::json) {
    Json line;
    line.set("time", utc_now()).set("level", name(level)).set("message", sentence);
    lines = line.dump() + "\n";
  } else {
    std::string before = format == LogFormat::text ? time_and_program() : "";
    if (level != LogLevel::info) before += fmt::format("{}: ", name(level));
    bool const one = level == LogLevel::warning;
    lines = each_line(without_controls(sentence, one ? "" : "\n\t"), before);
  }
  live_line::clear();
  std::fwrite(lines.data(), 1, lines.size(), stderr);
}

}  // namespace

std::string utc_now() {
  auto const now = std::chrono::system_clock::now();
  auto const milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  std::time_t const seconds = milliseconds / 1000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     milliseconds % 1000);
}

void set_log_format(LogFormat format) { chosen = format; }

void log(LogLevel level, std::string_view sentence) { put(level, sentence, format_of_messages()); }

void log_progress(std::string_view sentence) {
  bool const json = format_of_messages() == LogFormat::json;
  put(LogLevel::info, sentence, json ? LogFormat::json : LogFormat::text);
}

void warn(std::vector<std::string> const& warnings) {
  for (std::string const& warning : warnings) log(LogLevel::warning, warning);
}

std::string logged_report(std::string text, Json const* document) {
  struct stat out {};
  struct stat messages {};
  bool const one_file = chosen == LogFormat::automatic && is_file(STDOUT_FILENO, out) &&
                        is_file(STDERR_FILENO, messages) && out.st_dev == messages.st_dev &&
                        out.st_ino == messages.st_ino;
  if (chosen == LogFormat::json && document != nullptr) {
    Json line;
    line.set("time", utc_now()).set("level", "info").set("report", *document);
    return line.dump() + "\n";
  }
  return one_file || chosen == LogFormat::text ? each_line(text, time_and_program()) : text;
}

}  // namespace reshard
