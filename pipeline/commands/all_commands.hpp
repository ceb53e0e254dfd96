#pragma once

#include "pipeline/cli/command.hpp"

namespace reshard {

/// Every command that works on checkpoints or jobs, in the order of --help.
Commands all_commands();

// Each of them, in its own file.
std::unique_ptr<Command> make_convert_command();
std::unique_ptr<Command> make_run_command();
std::unique_ptr<Command> make_plan_command();
std::unique_ptr<Command> make_init_command();
std::unique_ptr<Command> make_nightly_command();
std::unique_ptr<Command> make_clean_command();
std::unique_ptr<Command> make_verify_command();
std::unique_ptr<Command> make_diff_command();
std::unique_ptr<Command> make_digest_command();
std::unique_ptr<Command> make_suspects_command();
std::unique_ptr<Command> make_extract_command();
std::unique_ptr<Command> make_inspect_command();
std::unique_ptr<Command> make_ls_command();
std::unique_ptr<Command> make_check_map_command();
std::unique_ptr<Command> make_view_command();

}  // namespace reshard
