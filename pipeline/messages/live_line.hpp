#pragma once

#include <cstddef>
#include <string_view>

namespace reshard {

/// The last line on a terminal, which is drawn again and again: stderr, also where mpirun passes it
/// on. Any thread.
namespace live_line {

/// Whether what is written to stderr is seen on a terminal.
bool on_terminal();
/// Columns that a text may have; those of a usual terminal where there is none.
std::size_t width();
/// Draws a text in place of what is drawn.
void draw(std::string_view text);
/// Leaves a text in place of what is drawn, and begins a new line.
void finish(std::string_view text);
/// Takes away what is drawn, for other words.
void clear();

}  // namespace live_line
}  // namespace reshard
