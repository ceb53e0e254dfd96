#include "core/formats/hdf5/parts.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include <fmt/ranges.h>

#include "core/base/tables/counted.hpp"
#include "core/containers/hdf5/keys.hpp"

namespace reshard::hdf5 {
namespace {

namespace fs = std::filesystem;

constexpr Index most_shown = 6;  // missing parts in a message

/// By number, the place of its file.
using Numbered = std::map<Index, std::size_t>;

Numbered numbered(std::span<Found const> parts, std::span<fs::path const> files) {
  Index const count = number_of(parts.front(), parts_key, files.front());
  Numbered seen;
  for (std::size_t f = 0; f < parts.size(); ++f) {
    std::string const file = files[f].string();
    Index const number = number_of(parts[f], part_key, files[f]);
    if (Index const other = number_of(parts[f], parts_key, files[f]); other != count)
      fail(ErrorKind::source,
           "{}: is part {} of {}, and {} is one of {}. The files belong to several checkpoints: "
           "move those of other checkpoints elsewhere.",
           file, number, other, files.front().string(), count);
    if (number < 1 || number > count)
      fail(ErrorKind::source,
           "{}: its attribute '{}' is {}, expected 1 to {}. The file is damaged: write it again.",
           file, part_key, number, count);
    if (auto const [at, is_new] = seen.emplace(number, f); !is_new)
      fail(ErrorKind::source,
           "{}: is part {} of {}, and so is {}. Move files of other checkpoints elsewhere.", file,
           number, count, files[at->second].string());
  }
  return seen;
}

/// Which parts there are not, by name where the files still have the names of a target.
void check_all_there(Numbered const& seen, Index count, std::span<fs::path const> files,
                     fs::path const& folder) {
  Index const missing = count - static_cast<Index>(seen.size());
  if (missing == 0) return;
  auto const& [number, file] = *seen.begin();
  bool const named = files[file].filename() == part_file_name(number, count);
  std::vector<std::string> shown;
  for (Index part = 1; static_cast<Index>(shown.size()) < std::min(missing, most_shown); ++part)
    if (!seen.contains(part))
      shown.push_back(named ? fmt::format("{} ({})", part, part_file_name(part, count))
                            : std::to_string(part));
  std::string const more =
      missing > most_shown ? fmt::format(" and {} more", missing - most_shown) : "";
  fail(ErrorKind::source,
       "{}: part{} {}{} of {} {} missing. Restore {} from the original, or write the checkpoint "
       "again.",
       folder.string(), missing == 1 ? "" : "s", fmt::join(shown, ", "), more, count,
       agreeing(missing, "is", "are"), missing == 1 ? "it" : "them");
}

}  // namespace

std::string text_of(Found const& part, std::string_view key) {
  for (auto const& [name, value] : part.attributes)
    if (name == key) return value;
  return {};
}

Index number_of(Found const& part, std::string_view key, fs::path const& path) {
  std::string const text = text_of(part, key);
  Index number = 0;
  auto const [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || number < 0)
    fail(ErrorKind::source,
         "{}: its attribute '{}' is '{}', expected a number. The file is damaged: write it again.",
         path.string(), key, text);
  return number;
}

std::string part_file_name(Index part, Index parts) {
  return fmt::format("part-{:05}-of-{:05}.h5", part, parts);
}

void check_parts(std::span<Found const> parts, std::span<fs::path const> files,
                 fs::path const& folder) {
  Numbered const seen = numbered(parts, files);
  for (std::size_t f = 0; f < parts.size(); ++f)
    for (std::string_view const key : {names_key, map_key})
      if (text_of(parts[f], key) != text_of(parts.front(), key))
        fail(ErrorKind::source,
             "{}: its attribute '{}' is '{}', that of {} is '{}'. The files belong to several "
             "checkpoints: move those of other checkpoints elsewhere.",
             files[f].string(), key, text_of(parts[f], key), files.front().string(),
             text_of(parts.front(), key));
  check_all_there(seen, number_of(parts.front(), parts_key, files.front()), files, folder);
}

}  // namespace reshard::hdf5
