#include "pipeline/cli/map_folders.hpp"

#include <array>
#include <climits>
#include <cstdlib>

#include <unistd.h>

namespace reshard {

std::vector<std::filesystem::path> map_folders() {
  namespace fs = std::filesystem;
  std::vector<fs::path> folders;
  if (char const* own = std::getenv("RESHARD_MAPS"); own != nullptr && *own != '\0')
    folders.emplace_back(own);
  std::array<char, PATH_MAX> program{};
  ssize_t const length = ::readlink("/proc/self/exe", program.data(), program.size() - 1);
  if (length > 0)
    folders.push_back(fs::path(program.data()).parent_path().parent_path() / "share" / "reshard" /
                      "models");
  return folders;
}

}  // namespace reshard
