#include "core/containers/tracker.hpp"

#include <algorithm>
#include <charconv>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/listed_folders.hpp"
#include "core/base/member_file.hpp"
#include "core/base/text/json.hpp"
#include "core/containers/saves.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_shown = 60;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n\v\f";
  std::size_t const begin = std::min(text.find_first_not_of(blank), text.size());
  return text.substr(begin, text.find_last_not_of(blank) + 1 - begin);
}

}  // namespace

std::optional<SaveStep> step_of_tracker(std::string_view text) {
  std::string_view const word = trimmed(text);
  if (word == release_name) return SaveStep{.release = true};
  if (word.empty() || word.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  SaveStep step;
  auto const [end, problem] =
      std::from_chars(word.data(), word.data() + word.size(), step.iteration);
  return problem == std::errc() ? std::optional(step) : std::nullopt;
}

void refuse_tracker(fs::path const& root, std::string_view text, std::string_view way_out) {
  std::vector<ListedSave> const saves = saves_of_run(root);
  fail(ErrorKind::source,
       "{}: expected an iteration number or the word \"release\", found {}.{} Correct it, or {}.",
       (root / tracker_name).string(), json_quoted(trimmed(text).substr(0, most_shown)),
       saves.empty() ? ""
                     : fmt::format(" The saves here are: {}; `reshard inspect {}` says which are "
                                   "complete.",
                                   listed_saves(saves), root.string()),
       way_out);
}

SaveStep read_tracker(fs::path const& root, std::string_view way_out) {
  std::string const text = text_once(root / tracker_name, [&] {
    return read_text_file(allowed_member(root, tracker_name), largest_tracker_bytes);
  });
  auto const step = step_of_tracker(text);
  if (!step) refuse_tracker(root, text, way_out);
  return *step;
}

std::string tracker_text(std::int64_t iteration) { return fmt::format("{}", iteration); }

}  // namespace reshard
