#include "pipeline/trace.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>

#include "core/base/error.hpp"

namespace reshard {
namespace {

constexpr std::size_t most_spans = 1'000'000;

// Threads are shown in this order.
constexpr std::array<std::string_view, 8> lanes = {"read", "copy and exchange", "upload", "pack", "exchange", "unpack", "download", "write"};

std::size_t lane_number(std::string_view lane) { return static_cast<std::size_t>(std::find(lanes.begin(), lanes.end(), lane) - lanes.begin()); }

void append_event(std::string& text, std::string const& event) {
  if (!text.empty()) text += ",\n";
  text += event;
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
  append_event(text, fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"rank {}{}"}}}})", rank, rank,
                                 dropped_ == 0 ? "" : fmt::format(", {} spans left out", dropped_)));
  std::map<std::size_t, std::string_view> used;
  for (StageSpan const& span : spans_) used.emplace(lane_number(span.lane), span.lane);
  for (auto const& [number, lane] : used) {
    append_event(text, fmt::format(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})", rank, number, lane));
    append_event(text, fmt::format(R"({{"name":"thread_sort_index","ph":"M","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", rank, number, number));
  }
  for (StageSpan const& span : spans_)
    append_event(text, fmt::format(R"({{"name":"{} {}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"round":{},"bytes":{}}}}})",
                                   span.lane, span.round, rank, lane_number(span.lane), (span.begin + shift) * 1e6, (span.end - span.begin) * 1e6,
                                   span.round, span.bytes));
  return text;
}

void write_trace(Comm const& comm, Trace const& trace, std::filesystem::path const& file) {
  comm.barrier();
  // The barrier ends at the same moment everywhere: what clocks say then is set equal to the longest run.
  double const mine = trace.now();
  double const longest = static_cast<double>(comm.max(static_cast<std::int64_t>(mine * 1e9))) / 1e9;
  std::string const own = trace.events(comm.rank(), longest - mine);
  std::ofstream out;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    out.open(file, std::ios::trunc);
    out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  });
  for (int r = 0; r < comm.size(); ++r) {  // one rank's text at a time
    std::string const part = comm.broadcast(r == comm.rank() ? own : std::string(), r);
    if (comm.rank() == 0) out << (r == 0 ? "" : ",\n") << part;
  }
  together(comm, [&] {
    if (comm.rank() != 0) return;
    out << "\n]}\n";
    out.close();
    if (!out) fail(ErrorKind::io, "{}: the trace cannot be written. Choose another path for --trace.", file.string());
  });
}

}  // namespace reshard
