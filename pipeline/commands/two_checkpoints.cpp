#include "pipeline/commands/two_checkpoints.hpp"

#include <fmt/format.h>

#include "pipeline/commands/job_command.hpp"

namespace reshard {

void TwoCheckpoints::add_to(CLI::App& command) {
  command.add_option("--map-a", a.map, "the map of A alone, where the two need others")
      ->type_name("MAP");
  command.add_option("--map-b", b.map, "the same for B")->type_name("MAP");
  command
      .add_option("--config-a", a.config, "config.json or its folder, if A has none (default: B's)")
      ->type_name("PATH");
  command.add_option("--config-b", b.config, "the same for B (default: A's)")->type_name("PATH");
  command
      .add_option("--prefix-a", a.prefix,
                  "what A's stored names begin with, as source.prefix of a job (default: as B's "
                  "reshard.json says)")
      ->type_name("TEXT");
  command.add_option("--prefix-b", b.prefix, "the same for B")->type_name("TEXT");
  command
      .add_option("--source-a", a.source, "a job file whose [source] and [model] say how A is read")
      ->type_name("JOB.toml");
  command.add_option("--source-b", b.source, "the same for B")->type_name("JOB.toml");
  command
      .add_option("--adapter", adapter,
                  "the folder of a LoRA adapter: compare as if it were merged into A")
      ->type_name("PATH");
}

std::string TwoCheckpoints::mistake() const {
  for (auto const& [option, one] : {std::pair("--map-a", &a.map), std::pair("--map-b", &b.map)})
    if (*one == "none")
      return fmt::format(
          "{} none: stored names are those of both, or of neither. Give --map none instead.",
          option);
  if (!a.source.empty() && (a.says() || map != "auto" || !adapter.empty()))
    return "--source-a says how A is read: set the keys of --map, --config-a, --prefix-a and "
           "--adapter in that file, or leave --source-a out.";
  if (!b.source.empty() && (b.says() || map != "auto"))
    return "--source-b says how B is read: set the keys of --map, --config-b and --prefix-b in that "
           "file, or leave --source-b out.";
  return "";
}

CompareRequest TwoCheckpoints::request(std::vector<std::string> const& paths, Comparison comparison,
                                       MapLibrary const& library, Comm const& comm) const {
  CompareRequest request;
  request.a = paths.front();
  request.b = paths.back();
  request.comparison = comparison;
  request.adapter = adapter;
  request.library = library;
  auto const follow = [&](SideChoice const& side, auto& job, ReadingTerms& terms) {
    terms = {
        .map = side.map.empty() ? map : side.map, .config = side.config, .prefix = side.prefix};
    if (side.source.empty()) return;
    job = read_source_job(side.source, library, comm);
    terms = terms_of_job(*job);
  };
  follow(a, request.job_a, request.terms_a);
  follow(b, request.job_b, request.terms_b);
  return request;
}

}  // namespace reshard
