// YAML: what is accepted is a value of bounded size, and its JSON, which is YAML too, is read as
// the same value. Any text, quoted, is read as that text.

#include "core/base/text/yaml.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using reshard::Json;

std::size_t values_in(Json const& value) {
  std::size_t count = 1;
  if (auto const* items = value.items())
    for (Json const& item : *items) count += values_in(item);
  if (auto const* members = value.members())
    for (auto const& [key, member] : *members) count += 1 + values_in(member);
  return count;
}

/// Whether JSON can say it: it has no infinite numbers, writes reals in ways that are texts in YAML
/// 1.1 (1e+16), and its longest key is short enough for one of YAML.
bool is_plain(Json const& value) {
  constexpr std::size_t longest_key = 500;
  if (value.real() != nullptr) return false;
  if (auto const* items = value.items()) return std::ranges::all_of(*items, is_plain);
  if (auto const* members = value.members())
    return std::ranges::all_of(*members, [](auto const& member) {
      return member.first.size() < longest_key && is_plain(member.second);
    });
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  std::string_view const text = fuzz::text_of(data, size);
  auto const value = fuzz::accepted(ErrorKind::source, [&] { return parse_yaml(text, "fuzz"); });
  if (!value) return 0;
  FUZZ_EXPECT(values_in(*value) <= 200'001);
  if (!is_plain(*value)) return 0;
  auto const again =
      fuzz::accepted(ErrorKind::source, [&] { return parse_yaml(value->dump(2), "written"); });
  if (again) FUZZ_EXPECT(*again == *value);
  return 0;
}
