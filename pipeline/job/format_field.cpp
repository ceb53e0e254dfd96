#include "pipeline/job/format_field.hpp"

#include <algorithm>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/formats/format.hpp"

namespace reshard::job {
namespace {

std::vector<std::string> format_words() {
  std::vector<std::string> words;
  for (std::string_view const word : format_names()) words.emplace_back(word);
  return words;
}

/// "auto", and formats that are not written.
bool is_of_sources_alone(std::string const& word) {
  FormatId const format = format_named(word).value();
  return format == FormatId::automatic || !format_of(format).target().written;
}

/// The word in quotes, with what it means behind.
std::string described(Format const& format) {
  return fmt::format("\"{}\" ({})", format.name(), format.words().help);
}

/// The formats in the order of their words. What a format of targets is stands with target.format.
std::string source_formats_help() {
  std::vector<std::string> formats;
  for (std::string const& word : format_words()) {
    if (word == name(FormatId::automatic)) continue;
    bool const of_sources = is_of_sources_alone(word);
    formats.push_back(of_sources ? described(format_of(*format_named(word))) : json_quoted(word));
  }
  return fmt::format("\"auto\" detects it from the folder; or {}.", fmt::join(formats, ", "));
}

std::string target_formats_help() {
  std::vector<std::string> formats;
  for (std::string const& word : format_words())
    if (!is_of_sources_alone(word)) formats.push_back(described(format_of(*format_named(word))));
  std::size_t const half = (formats.size() + 1) / 2;
  return fmt::format("{},\n{}.", fmt::join(std::span(formats).first(half), ", "),
                     fmt::join(std::span(formats).subspan(half), ", "));
}

/// With the full word of a format that is abbreviated.
Value with_full_word(Value const& value) {
  auto const* word = std::get_if<std::string>(&value);
  return word == nullptr ? value : Value(std::string(full_format_word(*word)));
}

}  // namespace

keys::Row<JobSpec::Source> source_format() {
  static std::string const help = source_formats_help();
  auto row = keys::choice("format", &JobSpec::Source::format, format_words(), help);
  row.set = [set = row.set](JobSpec::Source& source, Value const& value) {
    return set(source, with_full_word(value));
  };
  return row;
}

keys::Row<JobSpec::Target> target_format() {
  static std::string const help = target_formats_help();
  auto row = keys::choice("format", &JobSpec::Target::format, format_words(), help);
  std::erase_if(row.choices, is_of_sources_alone);
  row.set = [set_any = row.set, choices = row.choices](
                JobSpec::Target& target, Value const& given) -> std::optional<std::string> {
    Value const value = with_full_word(given);
    auto const* word = std::get_if<std::string>(&value);
    if (word != nullptr && std::ranges::count(choices, *word) != 0 && !set_any(target, value))
      return std::nullopt;
    return keys::expected_one_of(choices, value);
  };
  return row;
}

}  // namespace reshard::job
