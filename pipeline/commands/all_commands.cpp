#include "pipeline/commands/all_commands.hpp"

namespace reshard {

Commands all_commands() {
  Commands commands;
  for (auto const make :
       {make_convert_command, make_run_command, make_plan_command, make_init_command,
        make_nightly_command, make_clean_command, make_verify_command, make_diff_command,
        make_digest_command, make_suspects_command, make_extract_command, make_inspect_command,
        make_ls_command, make_check_map_command, make_view_command})
    commands.push_back(make());
  return commands;
}

}  // namespace reshard
