#pragma once

#include <cstdint>

namespace reshard {

/// What operator new has given out since the last call of begin_memory_use(), beyond what was held
/// then; the largest it ever was. Replaces operator new of the whole test program (memory_use.cpp).
/// Memory counts when it is asked for, also when no page of it is ever touched.
void begin_memory_use();
std::uint64_t peak_memory_bytes();

}  // namespace reshard
