#include "pipeline/job/field_kinds.hpp"

#include <limits>

namespace reshard::job {
namespace {

/// The number that a value is; or what is wrong with it.
std::variant<std::int64_t, std::string> number_of(Value const& value, std::int64_t least,
                                                  std::int64_t most) {
  auto const* count = std::get_if<std::int64_t>(&value);
  if (count == nullptr) return *expected("an integer", value);
  if (*count < least || *count > most)
    return fmt::format("expected a number from {} to {}", least, most);
  return *count;
}

}  // namespace

std::optional<std::string> expected(std::string_view what, Value const& value) {
  return fmt::format("expected {}, found {}", what, shown(value));
}

std::optional<std::string> expected_one_of(std::vector<std::string> const& words,
                                           Value const& value) {
  auto const* const text = std::get_if<std::string>(&value);
  std::string const near = text == nullptr || text->size() > 64 ? "" : nearest(*text, words);
  return *expected("one of " + listed(words), value) +
         (near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
}

Field text(std::string_view table, std::string name, At<std::string> at, std::string_view comment) {
  Field field{.table = table, .name = std::move(name), .kind = FieldKind::text, .comment = comment};
  field.show = [at](JobSpec const& spec) { return json_quoted(read(at, spec)); };
  field.set = [at](JobSpec& spec, Value const& value) -> std::optional<std::string> {
    auto const* word = std::get_if<std::string>(&value);
    if (word == nullptr) return expected("a string in double quotes", value);
    for (char const c : *word)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
        return "a control character is not allowed here";
    at(spec) = *word;
    return std::nullopt;
  };
  return field;
}

Field number(std::string_view table, std::string name, std::int64_t least, std::int64_t most,
             std::string_view comment, std::function<std::int64_t(JobSpec const&)> get,
             std::function<void(JobSpec&, std::int64_t)> put) {
  Field field{
      .table = table, .name = std::move(name), .kind = FieldKind::number, .comment = comment};
  field.range = most == std::numeric_limits<std::int64_t>::max()
                    ? fmt::format("{} or more", least)
                    : fmt::format("{} to {}", least, most);
  field.show = [get = std::move(get)](JobSpec const& spec) { return std::to_string(get(spec)); };
  field.set = [=, put = std::move(put)](JobSpec& spec,
                                        Value const& value) -> std::optional<std::string> {
    auto const found = number_of(value, least, most);
    if (auto const* problem = std::get_if<std::string>(&found)) return *problem;
    put(spec, std::get<std::int64_t>(found));
    return std::nullopt;
  };
  return field;
}

Field flag(std::string_view table, std::string name, At<bool> at, std::string_view comment) {
  Field field{.table = table, .name = std::move(name), .kind = FieldKind::flag, .comment = comment};
  field.show = [at](JobSpec const& spec) { return read(at, spec) ? "true" : "false"; };
  field.set = [at](JobSpec& spec, Value const& value) -> std::optional<std::string> {
    auto const* on = std::get_if<bool>(&value);
    if (on == nullptr) return expected("true or false", value);
    at(spec) = *on;
    return std::nullopt;
  };
  return field;
}

Field size(std::string_view table, std::string name, At<std::uint64_t> at,
           std::string_view comment) {
  Field field{.table = table, .name = std::move(name), .kind = FieldKind::size, .comment = comment};
  field.show = [at](JobSpec const& spec) { return json_quoted(text_from_bytes(read(at, spec))); };
  field.set = [at](JobSpec& spec, Value const& value) -> std::optional<std::string> {
    std::optional<std::uint64_t> bytes;
    if (auto const* word = std::get_if<std::string>(&value)) bytes = bytes_from_text(*word);
    if (auto const* count = std::get_if<std::int64_t>(&value); count != nullptr && *count > 0)
      bytes = static_cast<std::uint64_t>(*count);
    if (!bytes || *bytes == 0)
      return expected("a size above zero such as \"512 MiB\", \"5 GB\" or a plain number of bytes",
                      value);
    at(spec) = *bytes;
    return std::nullopt;
  };
  return field;
}

Field size_or_auto(std::string_view table, std::string name, At<std::uint64_t> at,
                   std::string_view comment) {
  Field field = size(table, std::move(name), at, comment);
  field.show = [at, show = field.show](JobSpec const& spec) {
    return read(at, spec) == 0 ? "\"auto\"" : show(spec);
  };
  field.set = [at, set = field.set](JobSpec& spec,
                                    Value const& value) -> std::optional<std::string> {
    auto const* word = std::get_if<std::string>(&value);
    if (word != nullptr && *word == "auto") {
      at(spec) = 0;
      return std::nullopt;
    }
    return set(spec, value) ? expected("\"auto\" or a size above zero such as \"512 MiB\"", value)
                            : std::nullopt;
  };
  return field;
}

Field with_example(Field field, std::string_view example) {
  field.example = example;
  return field;
}

Field with_scope(FieldScope scope, Field field) {
  field.scope = scope;
  return field;
}

}  // namespace reshard::job
