#include "pipeline/commands/two_checkpoints.hpp"

namespace reshard {

void TwoCheckpoints::add_to(CLI::App& command) {
  command.add_option("--map-a", map_a, "the map of A alone, where the two need others")
      ->type_name("MAP");
  command.add_option("--map-b", map_b, "the same for B")->type_name("MAP");
  command
      .add_option("--config-a", config_a, "config.json or its folder, if A has none (default: B's)")
      ->type_name("PATH");
  command.add_option("--config-b", config_b, "the same for B (default: A's)")->type_name("PATH");
  command
      .add_option("--prefix-a", prefix_a,
                  "what A's stored names begin with beside the model's own, as source.prefix of "
                  "a job; names without it are left out (default: as B's reshard.json says where "
                  "B was made from A)")
      ->type_name("TEXT");
  command.add_option("--prefix-b", prefix_b, "the same for B")->type_name("TEXT");
  command
      .add_option("--adapter", adapter,
                  "the folder of a LoRA adapter: compare as if it were merged into A")
      ->type_name("PATH");
}

std::string TwoCheckpoints::mistake() const {
  for (auto const& [option, one] : {std::pair("--map-a", &map_a), std::pair("--map-b", &map_b)})
    if (*one == "none")
      return fmt::format(
          "{} none: stored names are those of both, or of neither. Give --map none instead.",
          option);
  return "";
}

CompareRequest TwoCheckpoints::request(std::vector<std::string> const& paths, Comparison comparison,
                                       MapLibrary const& library) const {
  CompareRequest request;
  request.a = paths.front();
  request.b = paths.back();
  request.comparison = comparison;
  request.terms_a = {.map = map_a.empty() ? map : map_a, .config = config_a, .prefix = prefix_a};
  request.terms_b = {.map = map_b.empty() ? map : map_b, .config = config_b, .prefix = prefix_b};
  request.adapter = adapter;
  request.library = library;
  return request;
}

}  // namespace reshard
