#include "pipeline/job/key_places.hpp"

#include <string_view>

#include <fmt/format.h>

namespace reshard {
namespace {

/// The key of "[table] name = …" or "[table] name: …"; "" for any other sentence.
std::string key_of(std::string_view sentence) {
  std::size_t const end = sentence.find("] ");
  if (!sentence.starts_with('[') || end == std::string_view::npos) return "";
  std::string_view const rest = sentence.substr(end + 2);
  return fmt::format("{}.{}", sentence.substr(1, end - 1),
                     rest.substr(0, rest.find_first_of(" :")));
}

}  // namespace

std::string at_its_key(JobSpec const& job, std::string sentence) {
  std::string key = key_of(sentence);
  // etp that is not given is that of tp.
  if (key == "target.layout.etp" && !job.places.contains(key)) key = "target.layout.tp";
  auto const place = job.places.find(key);
  return place == job.places.end() ? sentence : fmt::format("{}: {}", place->second, sentence);
}

Error at_its_key(JobSpec const& job, Error const& error) {
  Error const placed(error.kind(), at_its_key(job, error.sentence()));
  return error.is_agreed() ? placed.agreed() : placed;
}

void with_key_places(JobSpec const& job, std::function<void()> const& work) {
  try {
    work();
  } catch (Error const& error) {
    throw at_its_key(job, error);
  }
}

}  // namespace reshard
