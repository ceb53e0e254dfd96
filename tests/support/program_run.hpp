#pragma once

#include <string>
#include <vector>

namespace reshard::test {

/// What the program said and how it ended.
struct Said {
  int code = 0;
  std::string out;    ///< standard output
  std::string error;  ///< the sentence of an Error, "" for none
};

/// Carries out a command line in this process, as `reshard` does: {"inspect", "folder", "--json"}.
/// The caller has an MpiSession. Maps are those of the source tree.
Said run_words(std::vector<std::string> const& words);

}  // namespace reshard::test
