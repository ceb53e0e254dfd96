#include "pipeline/run/system_facts.hpp"

#include <sys/statvfs.h>

#include <cerrno>
#include <fstream>
#include <string>

namespace reshard {

namespace fs = std::filesystem;

std::uint64_t free_bytes_at(fs::path path) {
  path = fs::absolute(path);
  struct statvfs status {};
  while (::statvfs(path.c_str(), &status) != 0) {
    bool const missing = errno == ENOENT || errno == ENOTDIR;
    if (!missing || !path.has_parent_path() || path == path.parent_path()) return 0;
    path = path.parent_path();
  }
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

std::uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    std::uint64_t kib = 0;
    status >> kib;
    return kib * 1024;
  }
  return 0;
}

}  // namespace reshard
