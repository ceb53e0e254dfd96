#include "pipeline/describe/run_table.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/ranges.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/saves.hpp"
#include "core/formats/format.hpp"
#include "core/formats/run/run_saves.hpp"
#include "core/formats/shapes.hpp"
#include "pipeline/records/source_stamp.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Saves whose headers are read.
constexpr std::size_t most_read = 16;

struct Row {
  std::string name;
  std::int64_t step = -1;  ///< -1: the name has none
  std::string format;
  std::string lacks;  ///< why_incomplete()
  std::string optimizer;
  bool read = false;  ///< headers
  SourceStamp stamp;
  std::vector<std::string> marks;  ///< which tracker names it, that it is taken

  std::int64_t age_seconds() const {
    return std::max<std::int64_t>(now_ns() - stamp.newest_ns, 0) / 1'000'000'000;
  }
  std::string state() const {
    if (lacks.empty()) return read ? "complete" : "not looked at";
    return lacks.starts_with("is incomplete: ") ? "in" + lacks.substr(5) : "interrupted: " + lacks;
  }
};

/// "yes", "no", or "?" where the format does not say.
std::string optimizer_in(Json const& report) {
  Json const* slots = report.find("optimizer_slots");
  if (slots != nullptr && slots->items() != nullptr) return slots->items()->empty() ? "no" : "yes";
  Json const* found = report.find("optimizer");
  if (found == nullptr)
    return report.find("format") != nullptr && *report.find("format") == Json("huggingface") ? "no"
                                                                                             : "?";
  Json const* kind = found->members() != nullptr ? found->find("kind") : found;
  if (kind == nullptr || kind->is_null()) return "no";
  return kind->text() != nullptr && kind->text()->starts_with("none") ? "no" : "yes";
}

/// `known`: the report of the save, or null if there is none yet.
void look(Row& row, fs::path const& save, Json const* known) {
  row.read = true;
  row.lacks = why_incomplete(save);
  (void)capture([&] {
    Inspection found;
    if (known == nullptr) {
      fs::path const folder = folder_of_weights(save);
      found = choose_format(folder).describe(folder, {});
      known = &found.json;
    }
    if (Json const* format = known->find("format"); format != nullptr && format->text())
      row.format = *format->text();
    row.optimizer = optimizer_in(*known);
  });
}

/// "3 h", by the largest unit.
std::string age_text(std::int64_t seconds) {
  if (seconds < 120) return "< 2 min";
  if (seconds < 7200) return fmt::format("{} min", seconds / 60);
  if (seconds < 172800) return fmt::format("{} h", seconds / 3600);
  if (seconds > 2 * 365 * 86400) return "> 2 years";
  return fmt::format("{} days", seconds / 86400);
}

/// Notes a tracker's word about this save.
void mark(Row& row, SaveNamer const& namer) {
  auto const step = step_of_tracker(namer.text);
  auto const own = step_of_folder(row.name);
  if (namer.text == row.name || (step && own && *step == *own))
    row.marks.push_back(fmt::format("{} names it", namer.file));
  else if (step && own && !own->release && !step->release && own->iteration > step->iteration)
    row.marks.push_back(fmt::format("newer than {}", namer.file));
}

std::vector<Row> rows_of(fs::path const& run, std::vector<std::string> names,
                         std::string const& taken, Json const* known) {
  std::vector<Row> rows;
  for (std::string& name : names) {
    Row row;
    if (auto const step = step_of_folder(name)) row.step = step->release ? 0 : step->iteration;
    row.name = std::move(name);
    rows.push_back(std::move(row));
  }
  std::ranges::sort(rows, [](Row const& a, Row const& b) {
    return a.step != b.step ? a.step > b.step : a.name > b.name;
  });
  std::vector<SaveNamer> const namers = save_namers(run);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    Row& row = rows[r];
    if (r < most_read || row.name == taken)
      look(row, run / row.name, row.name == taken ? known : nullptr);
    (void)capture([&] { row.stamp = source_stamp(run / row.name); });
    for (SaveNamer const& namer : namers) mark(row, namer);
    if (row.name == taken) row.marks.insert(row.marks.begin(), "taken");
  }
  return rows;
}

Json json_of(Row const& row) {
  Json json;
  json.set("name", valid_utf8(row.name))
      .set("iteration", row.step < 0 ? Json() : Json(row.step))
      .set("format", row.format.empty() ? Json() : Json(row.format))
      .set("complete", row.read ? Json(row.lacks.empty()) : Json())
      .set("state", valid_utf8(row.state()))
      .set("optimizer", row.optimizer.empty() ? Json() : Json(row.optimizer));
  return json.set("bytes", row.stamp.bytes)
      .set("age_seconds", row.age_seconds())
      .set("marks", Json(Json::Array(row.marks.begin(), row.marks.end())));
}

using Cells = std::vector<std::string>;

std::string lines_of(std::vector<Cells> const& table) {
  std::vector<std::size_t> widths(table.front().size(), 0);
  for (Cells const& cells : table)
    for (std::size_t c = 0; c < cells.size(); ++c) widths[c] = std::max(widths[c], cells[c].size());
  std::string text;
  for (Cells const& cells : table) {
    std::string line;
    for (std::size_t c = 0; c < cells.size(); ++c)
      line += c + 1 == cells.size() ? cells[c] : fmt::format("{:<{}}", cells[c], widths[c] + 2);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string text_of(std::vector<Row> const& rows, std::vector<SaveNamer> const& namers) {
  std::vector<Cells> table{{"save", "format", "optimizer", "size", "age", "state"}};
  for (Row const& row : rows) {
    std::string state = row.state();
    if (!row.marks.empty()) state += fmt::format("; {}", fmt::join(row.marks, ", "));
    table.push_back({row.name, row.format.empty() ? "?" : row.format,
                     row.optimizer.empty() ? "?" : row.optimizer, human_bytes(row.stamp.bytes),
                     age_text(row.age_seconds()), state});
  }
  std::string text = without_controls(lines_of(table), "\n");
  for (SaveNamer const& namer : namers)
    text += fmt::format("{}: {}\n", namer.file,
                        namer.text.empty() ? "is empty" : without_controls(namer.text));
  return text;
}

}  // namespace

RunTable run_table(fs::path const& path, fs::path const& taken, Json const* known) {
  RunTable result;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored) || is_one_save(path)) return result;
  std::vector<std::string> names = saves_below(path);
  if (known != nullptr && names.size() <= 1) {
    result.saves = names.size() == 1 && is_name_of_save(names.front()) ? 1 : 0;
    return result;
  }
  std::vector<Row> const rows =
      rows_of(path, std::move(names), taken.empty() ? "" : save_below(path, taken), known);
  bool const any =
      std::ranges::any_of(rows, [](Row const& row) { return is_name_of_save(row.name); });
  bool const all = std::ranges::all_of(rows, [](Row const& row) { return row.step >= 0; });
  if (!any && !(all && rows.size() > 1)) return result;
  for (Row const& row : rows) result.json.push(json_of(row));
  result.saves = rows.size();
  result.text = text_of(rows, save_namers(path));
  return result;
}

}  // namespace reshard
