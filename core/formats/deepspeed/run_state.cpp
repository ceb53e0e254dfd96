#include "core/formats/deepspeed/run_state.hpp"

#include "core/containers/dcp/directory.hpp"

namespace reshard::deepspeed {

std::vector<std::pair<std::string, std::string>> settings_by_parameter(RunState const& run,
                                                                       std::string const& place) {
  std::vector<std::pair<std::string, std::string>> result;
  if (run.optimizer.settings.empty()) return result;
  pickle::Document const settings = settings_of(run.optimizer);
  check_plain(settings, place);
  auto const& groups = settings.at(settings.root).items;
  for (std::size_t g = 0; g < groups.size() && g < run.optimizer.members.size(); ++g)
    for (auto const& [field, node] : settings.members(groups[g])) {
      if (field == "params") continue;
      pickle::Document single;
      single.root = single.add_copy(settings, node);
      std::string const bytes = dcp::torch_file_bytes(single, "archive");
      for (std::string const& name : run.optimizer.members[g])
        result.emplace_back(fmt::format("optimizer.param_groups.{}.{}", name, field), bytes);
    }
  return result;
}

}  // namespace reshard::deepspeed
