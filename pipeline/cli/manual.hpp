#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pipeline/cli/command_table.hpp"

namespace reshard {

/// "reshard.1", "reshard.toml.5" (man pages) and "job-spec.md" (docs/job-spec.md).
std::vector<std::string> manual_pages();

/// One of them. Made from the table of commands and from job::fields(); the same text in every run
/// of one build. Pre: the name is in the list.
std::string manual_page(std::string_view name, CommandTable const& table);

/// docs/job-spec.md alone: needs no command line.
std::string job_spec_markdown();

}  // namespace reshard
