#include "stages/plan/source/names/trainer_names.hpp"

#include <algorithm>
#include <utility>

namespace reshard {
namespace {

std::string with_star(std::string const& pattern, std::string_view star) {
  std::string result = pattern;
  if (std::size_t const at = result.find('*'); at != std::string::npos) result.replace(at, 1, star);
  return result;
}

/// The longest of the patterns that fit.
std::string const* fitting(MapKeptName const& name, std::string_view text) {
  std::string const* best = nullptr;
  for (std::string const& pattern : name.family)
    if (star_of(pattern, text) && (best == nullptr || best->size() < pattern.size()))
      best = &pattern;
  return best;
}

}  // namespace

std::optional<std::string_view> star_of(std::string_view pattern, std::string_view name) {
  std::size_t const star = pattern.find('*');
  if (star == std::string_view::npos)
    return pattern == name ? std::optional<std::string_view>("") : std::nullopt;
  std::string_view const end = pattern.substr(star + 1);
  if (name.size() < pattern.size() - 1 || !name.starts_with(pattern.substr(0, star)) ||
      !name.ends_with(end))
    return std::nullopt;
  return name.substr(star, name.size() - star - end.size());
}

std::optional<PartName> part_of_trainer(MapKept const& kept, std::string_view name) {
  std::optional<PartName> best;
  for (MapKeptName const& one : kept.names)
    if (auto const star = star_of(one.trainer, name);
        star && (!best || best->by->trainer.size() < one.trainer.size()))
      best = PartName{&one, *star};
  return best;
}

std::optional<PartName> part_of_family(MapKept const& kept, std::string_view name) {
  std::optional<PartName> best;
  std::size_t longest = 0;
  for (MapKeptName const& one : kept.names)
    if (std::string const* pattern = fitting(one, name);
        pattern != nullptr && (!best || longest < pattern->size())) {
      best = PartName{&one, *star_of(*pattern, name)};
      longest = pattern->size();
    }
  return best;
}

std::vector<std::string> family_names(PartName const& part) {
  std::vector<std::string> result;
  for (std::string const& pattern : part.by->family)
    result.push_back(with_star(pattern, part.star));
  return result;
}

std::string trainer_name(PartName const& part) { return with_star(part.by->trainer, part.star); }

MapKept const* trainer_of(std::vector<MapKept> const& trainers,
                          std::vector<std::string> const& names) {
  MapKept const* best = nullptr;
  std::pair<std::size_t, std::size_t> most;
  for (MapKept const& trainer : trainers) {
    std::pair<std::size_t, std::size_t> fits;  // names, and letters that patterns say of them
    for (std::string const& name : names)
      if (auto const part = part_of_trainer(trainer, name)) {
        ++fits.first;
        fits.second += name.size() - part->star.size();
      }
    if (fits > most) {
      most = fits;
      best = &trainer;
    }
  }
  return best;
}

bool has_own(MapKept const& kept) {
  return std::ranges::any_of(kept.names, [](MapKeptName const& name) { return name.own; });
}

}  // namespace reshard
