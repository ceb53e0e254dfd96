#pragma once

// As much of fmt as core/base, core/quant, core/device and core/transport use, on std::format of
// GCC 13 and later: for tests/gpu on machines that have no fmt at all (tests/gpu/run.sh looks for
// the real one first). Not for the program.

#include <cstdio>
#include <format>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace fmt {

using std::format;
using std::format_string;
using std::format_to;

template <class... Args>
void print(std::FILE* file, std::format_string<Args...> text, Args&&... args) {
  std::fputs(std::format(text, std::forward<Args>(args)...).c_str(), file);
}

template <class... Args>
void print(std::format_string<Args...> text, Args&&... args) {
  print(stdout, text, std::forward<Args>(args)...);
}

/// The elements of a range with a text between them; formatted at once.
template <class Range>
std::string join(Range const& range, std::string_view between) {
  std::string joined;
  for (auto const& element : range) {
    if (&element != &*std::begin(range)) joined += between;
    joined += std::format("{}", element);
  }
  return joined;
}

}  // namespace fmt
