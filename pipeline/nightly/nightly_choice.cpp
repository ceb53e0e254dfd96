#include "pipeline/nightly/nightly_choice.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "core/base/text/text.hpp"

namespace reshard {
namespace {

/// Of checkpoints that a warning names.
constexpr std::size_t shown_names = 8;
constexpr std::int64_t ns_per_second = 1'000'000'000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::optional<std::int64_t> step_of_name(std::string_view name) {
  if (name == "release") return 0;
  std::size_t end = name.size();
  while (end > 0 && !is_digit(name[end - 1])) --end;
  std::size_t begin = end;
  while (begin > 0 && is_digit(name[begin - 1])) --begin;
  if (begin == end || end - begin > 18) return std::nullopt;
  std::int64_t value = 0;
  std::from_chars(name.data() + begin, name.data() + end, value);
  return value;
}

bool ordered_by_number(std::span<ListedFolder const> folders) {
  return std::all_of(folders.begin(), folders.end(), [](ListedFolder const& folder) {
    return step_of_name(folder.name).has_value();
  });
}

std::vector<ListedFolder> newest_first(std::vector<ListedFolder> folders) {
  bool const by_number = ordered_by_number(folders);
  auto const age = [&](ListedFolder const& folder) {
    return by_number ? *step_of_name(folder.name) : folder.newest_ns;
  };
  std::sort(folders.begin(), folders.end(), [&](ListedFolder const& a, ListedFolder const& b) {
    return age(a) != age(b) ? age(a) > age(b) : a.name > b.name;
  });
  return folders;
}

TrackerWord tracker_word(std::string_view name, std::optional<std::int64_t> tracked) {
  auto const step = step_of_name(name);
  if (!tracked || !step || *step < *tracked) return TrackerWord::nothing;
  return *step == *tracked ? TrackerWord::names : TrackerWord::beyond;
}

std::string abandoned_note(std::vector<ListedFolder> converted, std::int64_t tracked,
                           std::string const& source, std::string const& target) {
  std::vector<std::string> names;
  for (ListedFolder const& folder : newest_first(std::move(converted)))
    if (tracker_word(folder.name, tracked) == TrackerWord::beyond) names.push_back(folder.name);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.empty()) return "";
  bool const one = names.size() == 1;
  return fmt::format(
      "the tracker in {} names step {}, but {} {} newer and converted. If training went back, "
      "remove {} from {} and from {}.",
      source, tracked, listed(names, shown_names), one ? "is" : "are", one ? "it" : "them", source,
      target);
}

std::optional<std::int64_t> unsettled_seconds(std::int64_t newest_ns, std::int64_t now_ns,
                                              std::int64_t settle_seconds) {
  std::int64_t const age =
      now_ns > newest_ns ? (now_ns - std::max<std::int64_t>(newest_ns, 0)) / ns_per_second : 0;
  return age < settle_seconds ? std::optional(age) : std::nullopt;
}

std::vector<std::string> surplus_targets(std::vector<ListedFolder> targets,
                                         ListedFolder const& current, std::size_t keep) {
  std::vector<std::string> surplus;
  if (keep == 0 || current.name.empty()) return surplus;
  auto const step = step_of_name(current.name);
  bool const by_number = step && ordered_by_number(targets);
  auto const is_newer = [&](ListedFolder const& target) {
    return by_number ? *step_of_name(target.name) > *step : target.newest_ns > current.newest_ns;
  };
  targets = newest_first(std::move(targets));
  for (std::size_t i = keep; i < targets.size(); ++i)
    if (targets[i].name != current.name && !is_newer(targets[i]))
      surplus.push_back(targets[i].name);
  std::reverse(surplus.begin(), surplus.end());
  return surplus;
}

bool would_stay(std::vector<ListedFolder> targets, ListedFolder const& current,
                ListedFolder const& one, std::size_t keep) {
  std::erase_if(targets, [&](ListedFolder const& target) {
    return target.name == one.name || target.name == current.name;
  });
  targets.push_back(current);
  targets.push_back(one);
  auto const surplus = surplus_targets(std::move(targets), current, keep);
  return std::find(surplus.begin(), surplus.end(), one.name) == surplus.end();
}

}  // namespace reshard
