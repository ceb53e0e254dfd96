#pragma once

#include <string>
#include <string_view>

namespace reshard::fuzz {

/// Reads a pickle that our emitter wrote, by rules of its own, and follows what Python would import
/// and call: "" when all of it is known to make values and do nothing else, else the first name
/// that is not, as "module.name". Ends the program at an opcode that the emitter does not write, or
/// a stack that does not add up.
std::string harmful_name(std::string_view pickle);

}  // namespace reshard::fuzz
