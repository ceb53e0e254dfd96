// What tests in Python ask of this program's libraries: `probe SUBJECT WORD…`; the sources beside
// this one list the words of each subject.

#include "tests/support/probe/probe.hpp"

#include <array>
#include <cstdio>
#include <string_view>

#include "core/base/error.hpp"

namespace reshard {
namespace {

struct Subject {
  std::string_view name;
  int (*run)(Words);
};

constexpr std::array subjects = {
    Subject{"dcp", probe_dcp},
    Subject{"dcp-item", probe_dcp_item},
#ifdef RESHARD_PROBE_HDF5
    Subject{"hdf5", probe_hdf5},
#endif
    Subject{"safetensors", probe_safetensors},
    Subject{"torch-file", probe_torch_file},
    Subject{"views", probe_views},
};

int probe(Words words) {
  for (Subject const& subject : subjects)
    if (!words.empty() && subject.name == words[0]) return subject.run(words);
  fail(ErrorKind::usage, "name a subject: dcp, dcp-item, hdf5, safetensors, torch-file, views");
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  try {
    return reshard::probe(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
  } catch (reshard::Error const& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return reshard::exit_code(error.kind());
  }
}
