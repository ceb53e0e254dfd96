#include "stages/stream/trace.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"

namespace reshard {
namespace {

constexpr std::size_t most_spans = 1'000'000;

// Threads are shown in this order.
constexpr std::array<std::string_view, 9> lanes = {
    "read",   "copy and exchange", "upload", "pack",          "exchange",
    "unpack", "download",          "write",  "read back file"};

// Lanes whose spans overlap take several threads; no more than rounds are under way.
constexpr std::size_t threads_of_lane = 1000;

constexpr std::string_view trace_beginning = R"({"displayTimeUnit":"ms","traceEvents":[)";

std::size_t lane_number(std::string_view lane) {
  return static_cast<std::size_t>(std::find(lanes.begin(), lanes.end(), lane) - lanes.begin());
}

void append_event(std::string& text, std::string const& event) {
  if (!text.empty()) text += ",\n";
  text += event;
}

/// The spans in the order of their beginnings, each with the number of a thread that is idle
/// meanwhile.
std::vector<std::pair<std::size_t, StageSpan const*>> in_threads(
    std::vector<StageSpan> const& spans) {
  std::vector<StageSpan const*> order;
  for (StageSpan const& span : spans) order.push_back(&span);
  std::stable_sort(order.begin(), order.end(),
                   [](StageSpan const* a, StageSpan const* b) { return a->begin < b->begin; });
  std::map<std::size_t, std::vector<double>> busy_until;  // of each lane's threads
  std::vector<std::pair<std::size_t, StageSpan const*>> result;
  for (StageSpan const* const span : order) {
    std::size_t const lane = lane_number(span->lane);
    std::vector<double>& threads = busy_until[lane];
    auto const free = std::find_if(threads.begin(), threads.end(),
                                   [&](double until) { return until <= span->begin; });
    auto const thread = static_cast<std::size_t>(free - threads.begin());
    if (free == threads.end()) threads.push_back(0);
    threads[thread] = span->end;
    result.emplace_back(lane * threads_of_lane + thread, span);
  }
  return result;
}

}  // namespace

void Trace::add(StageSpan const& span) {
  std::lock_guard const lock(mutex_);
  if (spans_.size() < most_spans)
    spans_.push_back(span);
  else
    ++dropped_;
}

std::string Trace::events(int rank, double shift) const {
  std::lock_guard const lock(mutex_);
  std::string text;
  append_event(
      text,
      fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"rank {}{}"}}}})",
                  rank, rank, dropped_ == 0 ? "" : fmt::format(", {} spans left out", dropped_)));
  auto const spans = in_threads(spans_);
  std::map<std::size_t, std::string_view> used;
  for (auto const& [thread, span] : spans) used.emplace(thread, span->lane);
  for (auto const& [thread, lane] : used) {
    append_event(
        text,
        fmt::format(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                    rank, thread, lane));
    append_event(
        text,
        fmt::format(
            R"({{"name":"thread_sort_index","ph":"M","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
            rank, thread, thread));
  }
  for (auto const& [thread, span] : spans)
    append_event(
        text,
        fmt::format(
            R"({{"name":"{} {}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"round":{},"bytes":{}}}}})",
            span->lane, span->round, rank, thread, (span->begin + shift) * 1e6,
            (span->end - span->begin) * 1e6, span->round, span->bytes));
  return text;
}

TraceFile::TraceFile(std::filesystem::path path) : path_(std::move(path)) {
  constexpr char const* advice = "Choose another path for --trace.";
  // Non-blocking: opening a pipe without a reader would wait indefinitely.
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  created_ = file_ >= 0;
  if (!created_ && errno == EEXIST) file_ = ::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (file_ < 0)
    fail(ErrorKind::usage, "{}: the trace cannot be written: {}. {}", path_.string(),
         system_reason(errno), advice);
  if (created_) return;
  struct stat status {};
  std::string beginning(trace_beginning.size(), '\0');
  bool const regular = ::fstat(file_, &status) == 0 && S_ISREG(status.st_mode);
  bool const replaceable =
      regular &&
      (status.st_size == 0 ||
       (::pread(file_, beginning.data(), beginning.size(), 0) > 0 && beginning == trace_beginning));
  if (replaceable && ::ftruncate(file_, 0) == 0) return;
  ::close(file_);
  fail(ErrorKind::usage, "{}: exists and is not a trace, so it is not overwritten. {}",
       path_.string(), advice);
}

TraceFile::~TraceFile() {
  ::close(file_);
  if (created_ && !written_) ::unlink(path_.c_str());
}

void TraceFile::write(std::string_view text) {
  written_ = true;
  while (!text.empty()) {
    ssize_t const done = ::write(file_, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0)
      fail(
          ErrorKind::io,
          "{}: the trace cannot be written: {}. The target is complete; choose another path for --trace next time.",
          path_.string(), system_reason(errno));
    text.remove_prefix(static_cast<std::size_t>(done));
  }
}

void write_trace(Comm const& comm, Trace const& trace, TraceFile* file) {
  comm.barrier();
  // The barrier ends at the same moment everywhere: all clocks are shifted to the largest time at
  // that moment.
  double const mine = trace.now();
  double const longest = static_cast<double>(comm.max(static_cast<std::int64_t>(mine * 1e9))) / 1e9;
  std::string const own = trace.events(comm.rank(), longest - mine);
  for (int r = 0; r < comm.size(); ++r) {  // one rank's text at a time
    std::string const part = comm.broadcast(r == comm.rank() ? own : std::string(), r);
    together(comm, [&] {
      if (file != nullptr)
        file->write((r == 0 ? std::string(trace_beginning) + "\n" : ",\n") + part);
    });
  }
  together(comm, [&] {
    if (file != nullptr) file->write("\n]}\n");
  });
}

}  // namespace reshard
