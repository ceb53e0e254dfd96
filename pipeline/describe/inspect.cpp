#include "pipeline/describe/look.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {

namespace fs = std::filesystem;

Inspection inspect(fs::path const& path, megatron::UserSizes const& user) {
  Inspection result = choose_format(path).describe(path, user);
  auto const hidden = parse_hidden_name(absolute_target(path).filename().string());
  if (!hidden || hidden->kind != HiddenName::Kind::staging) return result;
  std::string const target = (absolute_target(path).parent_path() / hidden->target).string();
  result.sound = false;
  result.json.set("unfinished_target", target);
  result.text += fmt::format(
      "unfinished        a run of reshard that writes {} has not completed: run its job again, or "
      "`reshard clean {}`\n",
      target, target);
  return result;
}

}  // namespace reshard
