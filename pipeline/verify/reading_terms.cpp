#include "pipeline/verify/reading_terms.hpp"

#include <fmt/ranges.h>

#include "core/base/capture.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/job/plan_request.hpp"

namespace reshard {
namespace fs = std::filesystem;

std::optional<JobSpec> recorded_job(Manifest const& manifest) {
  std::string const* text = manifest.job.text();
  if (text == nullptr) return std::nullopt;
  std::optional<JobSpec> job;
  // Of another version, or edited: a record that is wrong is reported by who compares with it.
  (void)capture([&] { job = parse_job_spec(*text, std::string(manifest_name), {}); });
  return job;
}

bool is_family(std::string const& map, MapLibrary const& library) {
  if (map == "auto" || map == "none" || map == "mcore") return false;
  bool family = false;
  (void)capture([&] { family = !library.named("model.map", map).axes.empty(); });
  return family;
}

std::string word_of_map(std::string_view file) {
  file = file.substr(0, file.find(' '));  // "llama.toml with the names of mistral"
  return std::string(file.substr(0, file.size() - (file.ends_with(".toml") ? 5 : 0)));
}

ReadingTerms terms_of_target(Manifest const& manifest, MapLibrary const& library) {
  ReadingTerms terms;
  terms.frozen = manifest.frozen;
  std::optional<JobSpec> const job = recorded_job(manifest);
  if (!job) return terms;
  terms.prefix = job->target.options.dcp.prefix;
  if (!job->target.options.dcp.map.empty())
    terms.map = job->target.options.dcp.map;
  else if (manifest.map != "none" &&
           format_of(job->target.format).target().names == NameOwner::family &&
           is_family(job->model.map, library))
    terms.map = job->model.map;
  else if (format_of(job->target.format).target().needs_masters &&
           is_family(word_of_map(manifest.map), library))
    terms.map = word_of_map(manifest.map);
  return terms;
}

ReadingTerms terms_of_source(Manifest const& manifest) {
  ReadingTerms terms;
  std::optional<JobSpec> const job = recorded_job(manifest);
  if (!job) return terms;
  // Where names were kept they are the same on both sides, which is found without being told.
  if (job->model.map != "none") terms.map = job->model.map;
  if (!job->source.config.empty() && sees_anything(job->source.config))
    terms.config = job->source.config;
  terms.prefix = job->source.prefix;
  terms.vocab = job->model.true_vocab_size;
  terms.frozen = frozen_patterns(*job);
  terms.tp = job->source.tp;
  terms.etp = job->source.etp;
  return terms;
}

ReadingTerms terms_of_job(JobSpec const& job) {
  return {.map = job.model.map,
          .config = job.source.config,
          .prefix = job.source.prefix,
          .vocab = job.model.true_vocab_size,
          .frozen = frozen_patterns(job),
          .tp = job.source.tp,
          .etp = job.source.etp};
}

bool is_made_from(Manifest const& manifest, fs::path const& path) {
  Json const* source = manifest.source.find("path");
  return source != nullptr && source->text() != nullptr &&
         seen_flag("is the recorded source", path,
                   [&] { return resolved_path(*source->text()) == resolved_path(path); });
}

ReadingTerms completed(ReadingTerms given, ReadingTerms const& recorded) {
  if (given.map == "auto") given.map = recorded.map;
  if (given.config.empty()) given.config = recorded.config;
  if (given.prefix.empty()) given.prefix = recorded.prefix;
  if (given.vocab == 0) given.vocab = recorded.vocab;
  if (given.frozen.empty()) given.frozen = recorded.frozen;
  if (given.tp == 1) given.tp = recorded.tp;
  if (given.etp == 1) given.etp = recorded.etp;
  return given;
}

std::string terms_beside(ReadingTerms const& given, ReadingTerms const& terms) {
  std::vector<std::string> parts;
  auto const add = [&parts](std::string_view key, auto const& was, auto const& is) {
    if (was == is) return;
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(is)>>)
      parts.push_back(fmt::format("{} = {}", key, is));
    else
      parts.push_back(fmt::format("{} = {}", key, json_quoted(is)));
  };
  add("prefix", given.prefix, terms.prefix);
  add("map", given.map, terms.map);
  add("config", given.config.string(), terms.config.string());
  add("true_vocab_size", given.vocab, terms.vocab);
  if (given.frozen != terms.frozen)
    parts.push_back(fmt::format("frozen = {}", json_quoted(listed(terms.frozen, 6))));
  add("tp", given.tp, terms.tp);
  add("etp", given.etp, terms.etp);
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace reshard
