#include "pipeline/verify/file_part.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

constexpr std::string_view automatic = "auto";
constexpr std::int64_t usual_parts = 30;
constexpr std::int64_t most_parts = 10'000;

/// 0 where the text is no number.
std::int64_t number_in(std::string_view text) {
  std::int64_t number = 0;
  char const* const end = text.data() + text.size();
  auto const [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? number : 0;
}

}  // namespace

FilePart part_of_day(std::int64_t of, std::int64_t day) { return {day % of + 1, of}; }

FilePart parse_file_part(std::string_view text, std::int64_t day) {
  if (text == automatic) return part_of_day(usual_parts, day);
  std::size_t const slash = std::min(text.find('/'), text.size());
  std::string_view const first = text.substr(0, slash);
  std::int64_t const number = first == automatic ? 1 : number_in(first);
  std::int64_t const of = slash < text.size() ? number_in(text.substr(slash + 1)) : 0;
  if (of < 1 || of > most_parts || number < 1 || number > of)
    fail(
        ErrorKind::usage,
        "--subset {}: is not a part of the files. Write 3/30 for the third of thirty parts (at most "
        "{}), auto/30 for that of today, or auto, which is auto/{}.",
        without_controls(text), most_parts, usual_parts);
  return first == automatic ? part_of_day(of, day) : FilePart{number, of};
}

std::vector<bool> files_in(FilePart part, std::span<std::uint64_t const> size_bytes) {
  auto const all = std::accumulate(size_bytes.begin(), size_bytes.end(), std::uint64_t{0});
  auto const of = static_cast<std::uint64_t>(part.of);
  std::vector<bool> members;
  std::uint64_t before = 0;
  for (std::uint64_t const size : size_bytes) {
    // In 128 bits, because bytes times parts may not fit in 64.
    auto const share =
        all == 0 ? 0
                 : static_cast<std::uint64_t>(static_cast<unsigned __int128>(before) * of / all);
    members.push_back(std::min(share, of - 1) + 1 == static_cast<std::uint64_t>(part.number));
    before += size;
  }
  return members;
}

}  // namespace reshard
