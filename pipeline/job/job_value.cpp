#include <array>
#include <charconv>

#include "core/base/json.hpp"
#include "pipeline/job/job_field.hpp"

namespace reshard::job {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};
// Largest first, and binary before decimal: printing takes the first that divides.
constexpr std::array<Unit, 9> units = {{{"TiB", 1ULL << 40U},
                                        {"TB", 1'000'000'000'000ULL},
                                        {"GiB", 1ULL << 30U},
                                        {"GB", 1'000'000'000ULL},
                                        {"MiB", 1ULL << 20U},
                                        {"MB", 1'000'000ULL},
                                        {"KiB", 1ULL << 10U},
                                        {"KB", 1'000ULL},
                                        {"B", 1ULL}}};

std::string shortened(std::string_view text) {
  constexpr std::size_t most = 80;
  if (text.size() <= most) return std::string(text);
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U)
    --end;  // not inside a UTF-8 character
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace

std::string shown(Value const& value) {
  if (auto const* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (auto const* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (auto const* word = std::get_if<std::string>(&value)) return json_quoted(shortened(*word));
  return std::get<Foreign>(value).what;
}

std::string label(Given const& given) {
  return fmt::format("{}: [{}] {} = {}", given.place, given.field->table, given.field->name,
                     shown(given.value));
}

Value value_from_word(Field const& field, std::string_view word) {
  if (word.size() >= 2 && word.front() == '"' && word.back() == '"')
    return std::string(word.substr(1, word.size() - 2));
  if (field.kind == FieldKind::flag && (word == "true" || word == "false")) return word == "true";
  std::int64_t count = 0;
  char const* const end = word.data() + word.size();
  bool const takes_numbers = field.kind == FieldKind::number || field.kind == FieldKind::size;
  auto const [rest, problem] = std::from_chars(word.data(), end, count);
  if (takes_numbers && problem == std::errc{} && rest == end) return count;
  return std::string(word);
}

std::optional<std::uint64_t> bytes_from_text(std::string_view text) {
  std::uint64_t count = 0;
  auto const [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (problem != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(rest - text.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  std::uint64_t bytes = 0;
  for (Unit const& known : units)
    if (unit == known.name && !__builtin_mul_overflow(count, known.bytes, &bytes) &&
        bytes <= INT64_MAX)
      return bytes;
  if (unit.empty() && !text.ends_with(' ') && count <= INT64_MAX) return count;
  return std::nullopt;
}

std::string text_from_bytes(std::uint64_t bytes) {
  for (Unit const& unit : units)
    if (bytes != 0 && bytes % unit.bytes == 0)
      return fmt::format("{} {}", bytes / unit.bytes, unit.name);
  return "0 B";
}

}  // namespace reshard::job
