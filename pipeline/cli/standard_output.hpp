#pragma once

#include <string_view>

namespace reshard {

/// Gives the program something at descriptors 0 to 2 where its caller closed them, so that no file
/// of ours is taken for them: what is written to a closed stdout fails, what is written to a closed
/// stderr is lost.
void guard_standard_streams();

/// Writes everything. Error: resources for a full disk, else io. A reader that has gone (`| head`)
/// has seen enough: that is none.
void write_to_stdout(std::string_view text);

}  // namespace reshard
