#include "pipeline/messages/log.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "core/base/text/text.hpp"
#include "pipeline/messages/live_line.hpp"

namespace reshard {
namespace {

std::atomic<LogFormat> chosen = LogFormat::plain;

/// Whether Open MPI's launcher started this process: it passes our words on from pipes.
bool is_below_mpirun() {
  constexpr std::array<std::string_view, 5> launchers = {"mpirun", "mpiexec", "orterun", "prterun",
                                                         "prte"};
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", ::getppid())), name);
  return std::ranges::find(launchers, name) != launchers.end();
}

/// Whether what is written there goes into a file, our own or that of mpirun.
bool is_file(int descriptor, struct stat& of) {
  if (::fstat(descriptor, &of) == 0 && S_ISREG(of.st_mode)) return true;
  if (!is_below_mpirun()) return false;
  std::string const path = fmt::format("/proc/{}/fd/{}", ::getppid(), descriptor);
  return ::stat(path.c_str(), &of) == 0 && S_ISREG(of.st_mode);
}

/// Of messages: plain, text or json.
LogFormat format_of_messages() {
  struct stat file {};
  if (chosen != LogFormat::automatic) return chosen;
  return is_file(STDERR_FILENO, file) ? LogFormat::text : LogFormat::plain;
}

constexpr std::string_view dated_pattern = "%Y-%m-%d %H:%M:%S %n: %v";  // of the local clock

/// Writes lines to stderr, with the time and the program's name or as they are.
spdlog::logger& logger_of(bool dated) {
  auto const made = [](std::string_view pattern) {
    spdlog::logger logger("reshard", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger.set_pattern(std::string(pattern));
    return logger;
  };
  static spdlog::logger with_time = made(dated_pattern);
  static spdlog::logger plain = made("%v");
  return dated ? with_time : plain;
}

/// A line as the logger with the time writes it.
std::string dated(std::string_view line) {
  spdlog::memory_buf_t text;
  spdlog::pattern_formatter(std::string(dated_pattern))
      .format(spdlog::details::log_msg("reshard", spdlog::level::info,
                                       spdlog::string_view_t(line.data(), line.size())),
              text);
  return {text.data(), text.size()};
}

std::string_view name(LogLevel level) {
  switch (level) {
    case LogLevel::info: return "info";
    case LogLevel::warning: return "warning";
    case LogLevel::error: return "error";
  }
  return "";
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    std::size_t const end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

spdlog::level::level_enum severity(LogLevel level) {
  switch (level) {
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: break;
  }
  return spdlog::level::err;
}

void put(LogLevel level, std::string_view sentence, LogFormat format) {
  live_line::clear();
  if (format == LogFormat::json) {
    Json line;
    line.set("time", utc_now()).set("level", name(level)).set("message", sentence);
    return logger_of(false).log(severity(level), line.dump());
  }
  std::string const word = level == LogLevel::info ? "" : fmt::format("{}: ", name(level));
  bool const one = level == LogLevel::warning;
  for (std::string const& line : lines_of(without_controls(sentence, one ? "" : "\n\t")))
    logger_of(format == LogFormat::text).log(severity(level), word + line);
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
  if (!one_file && chosen != LogFormat::text) return text;
  std::string lines;
  for (std::string const& line : lines_of(text)) lines += dated(line);
  return lines;
}

}  // namespace reshard
