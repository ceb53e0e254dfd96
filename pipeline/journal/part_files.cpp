#include "pipeline/journal/part_files.hpp"

#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "core/base/files/file.hpp"
#include "core/base/threads/activity.hpp"
#include "core/base/threads/retry.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

}  // namespace

bool PartFiles::claim(std::size_t part) {
  fs::path const path = folder_.part_file(run_, part);
  FileStep const step("creation", path);
  int const descriptor =
      retried([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (descriptor < 0 && errno == EEXIST) return false;
  if (descriptor < 0) fail_errno(path, "create", errno);
  ::close(descriptor);
  own_.push_back(path);
  return true;
}

std::vector<std::size_t> PartFiles::claimed() {
  FileStep const step("listing", folder_.path());
  std::vector<std::size_t> parts;
  std::error_code problem;
  for (fs::directory_iterator entry(folder_.path(), problem), end; !problem && entry != end;
       entry.increment(problem))
    if (auto const part = JournalFolder::part_of(entry->path().filename().string(), run_))
      parts.push_back(*part);
  if (problem) fail_errno(folder_.path(), "listing", problem.value());
  return parts;
}

void PartFiles::remove() {
  std::error_code ignored;  // they go with the journal
  for (fs::path const& path : std::exchange(own_, {})) fs::remove(path, ignored);
}

}  // namespace reshard
