#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"

namespace reshard {

/// How messages are written.
enum class LogFormat {
  plain,      ///< "warning: …"
  automatic,  ///< as text where stderr is a file, else plain
  text,       ///< "2026-11-22 19:31:05 reshard: warning: …"
  json,       ///< a line of JSON each: {"time", "level", "message"}
};
enum class LogLevel { info, warning, error };

/// Of this process from here on; plain before.
void set_log_format(LogFormat format);

/// A line on stderr. Control characters are escaped: names from a file must not steer the terminal.
/// An error of several lines becomes as many: a search of a log for "error: " finds all.
void log(LogLevel level, std::string_view sentence);
/// Progress, which has the time in every format.
void log_progress(std::string_view sentence);
/// A line for each warning.
void warn(std::vector<std::string> const& warnings);

/// "2026-11-22T19:31:05.123Z"
std::string utc_now();

/// A report as it is printed: its lines have the time where stdout is the file that messages go
/// to, and with LogFormat::text; with LogFormat::json it is one line, `document` with the time.
std::string logged_report(std::string text, Json const* document = nullptr);

}  // namespace reshard
