#include "pipeline/view/view_timeline.hpp"

#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <vector>

#include <fmt/ranges.h>

#include "core/base/file.hpp"
#include "core/base/json.hpp"
#include "core/transport/comm.hpp"

namespace reshard {
namespace {

struct Lane {
  std::int64_t rank = 0;
  std::int64_t thread = 0;
  std::string name;
};

/// Columns of numbers, one entry per span.
struct Spans {
  std::vector<std::int64_t> lane;
  std::vector<std::int64_t> round;
  std::vector<std::int64_t> begin_ns;
  std::vector<std::int64_t> length_ns;
  std::vector<std::int64_t> bytes;
};

/// Reads the events, one a line, as stages/stream/trace.cpp writes them.
class Reader {
 public:
  Reader(std::filesystem::path const& path, std::size_t most_spans)
      : path_(path), most_spans_(most_spans) {}

  void run() {
    std::ifstream file(path_);
    std::string line;
    if (!file || !std::getline(file, line))
      fail(ErrorKind::usage, "--trace {}: cannot be read. Check the path.", path_.string());
    if (line != R"({"displayTimeUnit":"ms","traceEvents":[)")
      fail(ErrorKind::source, "{}: is not a timeline of `reshard run --trace`. Name such a file.",
           path_.string());
    for (std::size_t number = 2; !complete && std::getline(file, line); ++number) {
      bool const whole = !file.eof();  // a line break ends it
      complete = line == "]}";
      if (complete || line.empty()) continue;
      if (line.ends_with(',')) line.pop_back();
      Json event;
      auto const error =
          capture([&] { event = parse_json(line, fmt::format("{}:{}", path_.string(), number)); });
      if (error && whole) throw *error;
      if (!error) take(event);
    }
  }

  bool complete = false;
  std::vector<Lane> lanes;
  std::map<std::int64_t, std::string> ranks;
  Spans spans;

 private:
  std::int64_t integer(Json const& event, std::string_view key) const {
    Json const* value = event.find(key);
    if (value == nullptr || value->integer() == nullptr) refuse_without(key);
    return *value->integer();
  }

  [[noreturn]] void refuse_without(std::string_view key) const {
    fail(ErrorKind::source, "{}: an event lacks '{}'. The file is damaged: run with --trace again.",
         path_.string(), key);
  }

  std::int64_t nanoseconds(Json const& event, std::string_view key) const {
    Json const* value = event.find(key);
    double const* real = value == nullptr ? nullptr : value->real();
    if (real != nullptr && std::fabs(*real) < 1e15) return std::llround(*real * 1e3);
    return integer(event, key) * 1000;
  }

  static std::string text(Json const* object, std::string_view key) {
    Json const* value = object == nullptr ? nullptr : object->find(key);
    return value == nullptr || value->text() == nullptr ? std::string() : *value->text();
  }

  std::int64_t lane_of(Json const& event) {
    std::pair const key(integer(event, "pid"), integer(event, "tid"));
    auto const [at, is_new] = numbers_.emplace(key, static_cast<std::int64_t>(lanes.size()));
    if (is_new) lanes.push_back({key.first, key.second, {}});
    return at->second;
  }

  void take(Json const& event) {
    std::string const kind = text(&event, "ph");
    std::string const name = text(&event, "name");
    Json const* args = event.find("args");
    if (kind == "M" && name == "process_name") ranks[integer(event, "pid")] = text(args, "name");
    if (kind == "M" && name == "thread_name")
      lanes[static_cast<std::size_t>(lane_of(event))].name = text(args, "name");
    if (kind != "X") return;
    if (args == nullptr) refuse_without("args");
    if (spans.lane.size() == most_spans_)
      fail(ErrorKind::usage,
           "{}: has more spans than the {} that a page shows. Perfetto opens larger files.",
           path_.string(), most_spans_);
    spans.lane.push_back(lane_of(event));
    spans.round.push_back(integer(*args, "round"));
    spans.bytes.push_back(integer(*args, "bytes"));
    spans.begin_ns.push_back(nanoseconds(event, "ts"));
    spans.length_ns.push_back(nanoseconds(event, "dur"));
  }

  std::filesystem::path path_;
  std::size_t most_spans_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> numbers_;
};

}  // namespace

Timeline read_timeline(std::filesystem::path const& trace, std::string const& made_by,
                       std::size_t most_spans) {
  Reader reader(trace, most_spans);
  reader.run();
  std::string out =
      fmt::format(R"({{"reshard_view":1,"kind":"timeline","title":{},"made_by":{},"ranks":[)",
                  json_quoted(trace.filename().string()), json_quoted(made_by));
  char const* comma = "";
  for (auto const& [rank, name] : reader.ranks) {
    out += fmt::format(R"({}{{"rank":{},"name":{}}})", comma, rank, json_quoted(name));
    comma = ",";
  }
  out += R"(],"lanes":[)";
  comma = "";
  for (Lane const& lane : reader.lanes) {
    out += fmt::format(R"({}{{"rank":{},"thread":{},"name":{}}})", comma, lane.rank, lane.thread,
                       json_quoted(lane.name));
    comma = ",";
  }
  Spans const& spans = reader.spans;
  out += fmt::format(
      R"(],"spans":{{"lane":[{}],"round":[{}],"begin_ns":[{}],"length_ns":[{}],"bytes":[{}]}}}})",
      fmt::join(spans.lane, ","), fmt::join(spans.round, ","), fmt::join(spans.begin_ns, ","),
      fmt::join(spans.length_ns, ","), fmt::join(spans.bytes, ","));
  return {std::move(out), reader.complete};
}

}  // namespace reshard
