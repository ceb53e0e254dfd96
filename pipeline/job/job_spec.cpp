#include "pipeline/job/job_spec.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "core/base/error.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/text.hpp"
#include "core/io/io_engines.hpp"
#include "pipeline/job/job_field.hpp"

namespace reshard {
namespace {

using job::Field;
using job::Given;
using job::Value;

// A job file is a page of text. Each dot of a key is a table inside a table and a level of
// recursion in the TOML library.
constexpr std::size_t limit_text_bytes = 64 * 1024;
constexpr std::ptrdiff_t limit_dots = 2048;
constexpr std::size_t limit_reported = 25;

/// Where a mistake is in the job file; what has no place there (the command line, missing keys,
/// contradictions) comes last.
struct Mistake {
  std::pair<std::uint32_t, std::uint32_t> line_column = {UINT32_MAX, UINT32_MAX};
  std::string sentence = {};
};

std::pair<std::uint32_t, std::uint32_t> position(toml::source_region const& region) {
  return {static_cast<std::uint32_t>(region.begin.line),
          static_cast<std::uint32_t>(region.begin.column)};
}

Value value_of(toml::node const& node) {
  if (node.is_integer()) return node.as_integer()->get();
  if (node.is_boolean()) return node.as_boolean()->get();
  if (node.is_string()) return node.as_string()->get();
  if (node.is_floating_point())
    return keys::Foreign{fmt::format("{:#}", node.as_floating_point()->get())};
  if (toml::array const* const array = node.as_array(); array != nullptr) {
    std::vector<std::string> texts;
    for (toml::node const& element : *array)
      if (auto const* const text = element.as_string()) texts.push_back(text->get());
    if (texts.size() == array->size()) return texts;
    return keys::Foreign{"an array"};
  }
  if (node.is_table()) return keys::Foreign{"a table"};
  return keys::Foreign{"a date or a time"};
}

/// Keys that had another name in an earlier release, which is still read.
struct EarlierName {
  std::string_view earlier, now;
};
constexpr std::array earlier_names{EarlierName{"run.hand_out", "run.work_stealing"},
                                   EarlierName{"target.since", "target.incremental_from"},
                                   EarlierName{"target.since_links", "target.incremental_links"},
                                   EarlierName{"nightly.since", "nightly.incremental"}};

/// nullptr for a key that is no earlier name.
EarlierName const* earlier_name(std::string_view key) {
  auto const found = std::ranges::find(earlier_names, key, &EarlierName::earlier);
  return found == earlier_names.end() ? nullptr : &*found;
}

/// "" for a key that had no other name.
std::string_view earlier_name_of(Field const& field) {
  auto const found = std::ranges::find(earlier_names, field.key(), &EarlierName::now);
  return found == earlier_names.end() ? "" : found->earlier;
}

Field const* find_field(std::string_view key) {
  if (EarlierName const* const name = earlier_name(key)) key = name->now;
  for (Field const& field : job::fields())
    if (field.key() == key) return &field;
  return nullptr;
}

/// The keys and tables that a table may have: {"path", "format", ...} for "source"; each once, in
/// the order of the fields.
std::vector<std::string> members_of(std::string_view table,
                                    std::span<std::string const> further_axes = {}) {
  std::vector<std::string> out;
  std::string const prefix = table.empty() ? "" : std::string(table) + ".";
  for (Field const& field : job::fields()) {
    std::string const key = field.key();
    if (!key.starts_with(prefix)) continue;
    std::string const member =
        key.substr(prefix.size(), key.find('.', prefix.size()) - prefix.size());
    if (std::find(out.begin(), out.end(), member) == out.end()) out.push_back(member);
  }
  if (table == job::layout_table)
    for (std::string const& axis : further_axes)
      if (std::find(out.begin(), out.end(), axis) == out.end()) out.push_back(axis);
  return out;
}

/// Inside [target], target.layout.tp is written layout.tp; a key of another table in full.
std::string as_written_in(std::string_view table, std::string const& key) {
  std::string const head = std::string(table) + ".";
  return !table.empty() && key.starts_with(head) ? key.substr(head.size()) : key;
}

/// "did you mean …?" for a key that is not known in this table.
std::string advice(std::string_view table, std::string_view member,
                   std::span<std::string const> further_axes) {
  std::vector<std::string> const known = members_of(table, further_axes);
  for (Field const& field : job::fields())
    if (std::string const key = field.key();
        key.find(fmt::format(".{}.", member)) != std::string::npos)
      return "it is a table; set its keys one by one, such as " + key;
  for (bool const layout : {true, false})  // sizes of the target's layout are meant most often
    for (Field const& field : job::fields())
      if (std::string const key = field.key();
          key.ends_with(fmt::format(".{}", member)) && (!layout || !field.axis.empty()))
        return "did you mean " + as_written_in(table, key) + "?";
  std::string const near = member.size() < 64 ? nearest(member, known) : "";
  std::string const all = listed(known, known.size());
  if (near.empty()) return "known here: " + all;
  // Names of axes are so short that any other is near.
  return "did you mean " + near + "?" + (table == job::layout_table ? " Known here: " + all : "");
}

/// Whether a line, counted from 1, has an odd number of double quotes.
bool quote_is_open(std::string_view text, std::size_t line) {
  for (; line > 1 && !text.empty(); --line) {
    auto const end = text.find('\n');
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  text = text.substr(0, text.find('\n'));
  return std::ranges::count(text, '"') % 2 == 1;
}

/// Reads one job: the file, then the overrides, then what is missing or contradicts itself.
/// Collects mistakes instead of stopping.
class JobReader {
 public:
  JobReader(std::string_view file_name, JobUse use, MeshAxisNames const& mesh_axes)
      : file_name_(file_name), use_(use), mesh_axes_(mesh_axes) {}

  void read_text(std::string_view text) {
    if (text.size() > limit_text_bytes)
      fail(ErrorKind::usage,
           "{}: {} bytes; a job file has at most {}. Check that this is the job file", file_name_,
           text.size(), limit_text_bytes);
    if (std::count(text.begin(), text.end(), '.') > limit_dots)
      fail(
          ErrorKind::usage,
          "{}: more than {} dots; a job file is not nested so deeply. Check that this is the job file",
          file_name_, limit_dots);
    try {
      read_table(toml::parse(text, std::string_view(file_name_)), "");
    } catch (toml::parse_error const& problem) {
      auto const [line, column] = position(problem.source());
      std::string const reason = json_quoted(problem.description());
      bool const bare = reason.find("could not determine value type") != std::string::npos;
      if (!bare && quote_is_open(text, line))
        fail(ErrorKind::usage,
             "{}:{}: not TOML: a string has no closing quote. Add it, then run again", file_name_,
             line);
      fail(ErrorKind::usage, "{}:{}:{}: not TOML: {}. {}, then run again", file_name_, line, column,
           std::string_view(reason).substr(1, reason.size() - 2),
           bare ? "Put strings in double quotes" : "Correct the line");
    }
  }

  void read_override(std::string const& text) {
    std::string const place = "--set " + json_quoted(text);
    std::size_t const equals = text.find('=');
    if (equals == std::string::npos)
      return add({}, place, "expected key=value, such as run.memory=\"1 GiB\"");
    auto const trimmed = [](std::string_view part) {
      while (part.starts_with(' ')) part.remove_prefix(1);
      while (part.ends_with(' ')) part.remove_suffix(1);
      return part;
    };
    read_key(trimmed(std::string_view(text).substr(0, equals)),
             trimmed(std::string_view(text).substr(equals + 1)), place);
  }

  void read_key(std::string_view key, std::string_view word, std::string const& place) {
    Field const* const field = known_field(key);
    if (field != nullptr) {
      note_earlier(key, place);
      return take(*field, keys::value_from_word(field->kind, word), place, {});
    }
    std::size_t const dot = key.rfind('.');
    std::string_view const table = dot == std::string_view::npos ? "" : key.substr(0, dot);
    std::string_view const member = dot == std::string_view::npos ? key : key.substr(dot + 1);
    add({}, place,
        fmt::format("unknown key {}: {}", json_quoted(key),
                    advice(members_of(table).empty() ? "" : table, member, axes_)));
  }

  JobSpec finish() {
    for (Field const& field : job::fields())
      if (use_ != JobUse::source && field.required() && !seen_.contains(field.key()))
        add({}, file_name_,
            fmt::format("[{}] {} is missing. Add it, such as {} = {}", field.table, field.name,
                        field.name, field.example));
    std::vector<Given> given;
    for (auto const& [key, value] : taken_)
      if (use_ != JobUse::source || key.starts_with("source.") || key.starts_with("model."))
        given.push_back(value);
    for (std::string& sentence : job::contradictions(spec_, given))
      mistakes_.push_back({.sentence = std::move(sentence)});
    if (!mistakes_.empty()) report();
    for (auto const& [key, value] : taken_) spec_.places[key] = value.place;
    JobSpec::Layout& layout = spec_.target.layout;
    if (!layout.pipeline.empty())
      layout.sizes["vpp"] =
          static_cast<int>(job::pipeline_stages(layout.pipeline) / layout.size("pp"));
    return spec_;
  }

 private:
  using Position = decltype(Mistake::line_column);

  void read_table(toml::table const& table, std::string const& prefix) {
    for (auto const& [key, node] : table) {
      std::string const full =
          prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
      Field const* const field =
          key.str().find('.') == std::string_view::npos ? known_field(full) : nullptr;
      std::string const place =
          place_of(node.source().begin.line == 0 ? key.source() : node.source());
      if (field != nullptr) {
        note_earlier(full, place);
        if (seen_.contains(field->key()))
          add(position(node.source()), place,
              fmt::format("{} is an earlier name of {}, and both are given. Remove one",
                          earlier_name_of(*field), field->key()));
        take(*field, value_of(node), place, position(node.source()));
      } else if (key.str().find('.') != std::string_view::npos || members_of(full).empty()) {
        std::string const where = prefix.empty() ? "" : fmt::format("[{}] ", prefix);
        add(position(key.source()), place_of(key.source()),
            fmt::format("{}unknown key {}: {}", where, keys::shown(Value(std::string(key.str()))),
                        advice(prefix, key.str(), axes_)));
      } else if (node.is_table() && full == job::nightly_table && use_ == JobUse::run) {
        add(position(key.source()), place_of(key.source()),
            fmt::format(
                "[{}]: only `reshard nightly` uses this table. Run that command (with --dry-run it plans a night), or remove the table",
                full));
      } else if (node.is_table()) {
        read_table(*node.as_table(), full);
      } else {
        add(position(node.source()), place,
            fmt::format("{} = {}: expected a table [{}]", full, keys::shown(value_of(node)), full));
      }
    }
  }

  /// One of the usual keys, or that of a further axis which the map knows.
  Field const* known_field(std::string_view key) {
    Field const* const usual = find_field(key);
    if (usual != nullptr || !mesh_axes_ || !members_of(key).empty()) return usual;
    std::string const prefix = std::string(job::layout_table) + ".";
    if (!key.starts_with(prefix)) return nullptr;
    for (Field const& field : further_)
      if (field.key() == key) return &field;
    if (!asked_) axes_ = mesh_axes_();
    asked_ = true;
    std::string const axis(key.substr(prefix.size()));
    if (std::find(axes_.begin(), axes_.end(), axis) == axes_.end()) return nullptr;
    return &further_.emplace_back(job::further_axis(axis));
  }

  void note_earlier(std::string_view key, std::string_view place) {
    if (EarlierName const* const name = earlier_name(key))
      spec_.notes.push_back(fmt::format("{}: {} is now named {}: the earlier name is still read.",
                                        place, name->earlier, name->now));
  }

  std::string place_of(toml::source_region const& region) const {
    return fmt::format("{}:{}:{}", file_name_, region.begin.line, region.begin.column);
  }

  void take(Field const& field, Value value, std::string place, Position position) {
    seen_.insert(field.key());
    if (auto* const word = std::get_if<std::string>(&value);
        word != nullptr && job::is_path(field.key()))
      *word = job::with_home(std::move(*word));
    if (auto* const words = std::get_if<std::vector<std::string>>(&value);
        words != nullptr && job::is_path(field.key()))
      for (std::string& word : *words) word = job::with_home(std::move(word));
    Given given{.field = &field, .value = std::move(value), .place = std::move(place)};
    if (field.table == job::nightly_table && use_ == JobUse::run)
      return mistakes_.push_back(
          {position,
           job::label(given) +
               ": only `reshard nightly` uses this table. Run that command (with --dry-run it plans a night), or remove the key"});
    if (auto const problem = field.set(spec_, given.value))
      mistakes_.push_back({position, job::label(given) + ": " + *problem});
    else
      taken_.insert_or_assign(field.key(), std::move(given));
  }

  void add(Position position, std::string_view place, std::string_view sentence) {
    mistakes_.push_back({position, fmt::format("{}: {}", place, sentence)});
  }

  [[noreturn]] void report() {
    std::stable_sort(mistakes_.begin(), mistakes_.end(), [](Mistake const& a, Mistake const& b) {
      return a.line_column < b.line_column;
    });
    std::string all;
    for (std::size_t i = 0; i < std::min(mistakes_.size(), limit_reported); ++i)
      all += (i == 0 ? "" : "\n") + mistakes_[i].sentence;
    if (mistakes_.size() > limit_reported)
      all +=
          fmt::format("\n{}: and {} more mistakes", file_name_, mistakes_.size() - limit_reported);
    throw Error(ErrorKind::usage, all);
  }

  std::string file_name_;
  JobUse use_;
  MeshAxisNames const& mesh_axes_;
  bool asked_ = false;
  std::vector<std::string> axes_;  ///< what mesh_axes_ said
  std::deque<Field> further_;      ///< the keys of further axes that the job names
  JobSpec spec_;
  std::set<std::string> seen_;
  std::map<std::string, Given> taken_;
  std::vector<Mistake> mistakes_;
};

}  // namespace

std::string_view name(IoChoice io) {
  if (io == IoChoice::automatic) return "auto";
  return io_engines()[static_cast<std::size_t>(io) - 1].name;
}

JobSpec parse_job_spec(std::string_view text, std::string_view file_name,
                       std::span<std::string const> overrides, JobUse use,
                       MeshAxisNames const& mesh_axes) {
  JobReader reader(file_name, use, mesh_axes);
  reader.read_text(text);
  for (std::string const& override_text : overrides) reader.read_override(override_text);
  return reader.finish();
}

JobSpec job_of_keys(std::span<GivenKey const> keys, std::span<std::string const> overrides,
                    MeshAxisNames const& mesh_axes) {
  JobReader reader("convert", JobUse::run, mesh_axes);
  for (GivenKey const& given : keys) reader.read_key(given.key, given.word, given.place);
  for (std::string const& override_text : overrides) reader.read_override(override_text);
  return reader.finish();
}

}  // namespace reshard
